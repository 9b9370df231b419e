#!/usr/bin/env bash
# Build the paper's rule sets: 259 principles of five pools, 87 distinct rules, the 20 and 10 most important (appendix
# Rule Set Construction). You supply the pools and people's answers; docs/rule-pools.md says where to get each pool.
# After a crash, run it again: judges rate only the missing rules. For other pools or judges, change a copy.
#
#     examples/paper_rules.sh POOLS OUT       e.g. with POOLS/constitutional-ai.csv; rule sets in OUT/top-20.toml, top-10
set -euo pipefail
pools=$1 out=$2 files=()
mkdir -p "$out"

# Bai et al. 2022, Huang et al. 2024, Li et al. (RuleAdapter), Mu et al. 2024, Ji et al. 2024: 259 principles.
for name in constitutional-ai collective-constitutional-ai rule-adapter rule-based-rewards pku-saferlhf; do
  files+=("$pools/$name.csv")
done
encore rules merge "${files[@]}" --output "$out/merged.toml"
encore rules dedupe "$out/merged.toml" --threshold 0.8 --output "$out/distinct.toml" # 87

rate() { encore rules rate-importance "$out/distinct.toml" --output "$out/importance" "$@"; }
# Five people who had evaluated the safety of language models before rated distinct.toml.
if [ -e "$pools/people.csv" ]; then rate --people "$pools/people.csv"; fi
# The paper's four judges. Servers rename their models: give the server's name, and the release as --revision.
rate --judge gpt-4o --backend http --base-url https://api.openai.com/v1
for judge in claude-3-7-sonnet deepseek-v3 gemini-2.5-flash; do # by your proxy with the OpenAI protocol
  rate --judge "$judge" --backend http --base-url http://127.0.0.1:4000/v1 --api-key-env PROXY_API_KEY
done

for size in 20 10; do
  encore rules select "$out/importance" --top "$size" --output "$out/top-$size.toml"
done
