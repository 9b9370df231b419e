// The page of `encore browse`. Its address has all of its state: filters, page and pair.
// A text of the study always becomes a text node, never markup.

const byId = (id) => document.getElementById(id);
const FILTERS = ["text", "rule", "null", "min_rating", "max_rating", "disagreement", "run", "source"];
// Wording of each column that the list can be sorted by.
const SORTS = {
  pair: "pair", prompt: "prompt", source: "source", chosen: "chosen", rejected: "rejected",
  difference: "difference", nulls: "nulls", against: "rules against people",
};
// Invisible characters, some of which reverse a line. Joiners are kept, because emoji need them.
const UNSEEN = /((?![\t\n\r\u200c\u200d])[\p{Cc}\p{Cf}])/u;

let study = null; // the answer of /api/study
let list = null; // the displayed answer of /api/pairs
let listAddress = null; // the query of that answer
let lastPosition = null; // position of the pair that was open

// --- addresses and answers ---------------------------------------------------------------------

const inAddress = () => new URLSearchParams(location.search);

function address(changes) {
  const changed = inAddress();
  for (const [name, value] of Object.entries(changes)) changed.set(name, value ?? "");
  for (const [name, value] of [...changed]) if (value === "") changed.delete(name);
  return `?${changed}`;
}

function go(changes) {
  history.pushState(null, "", address(changes));
  return show();
}

async function ask(path) {
  const answer = await fetch(path).catch(() => {
    throw new Error("no answer; is `encore browse` still running?");
  });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

async function loadList(query) {
  const listQuery = new URLSearchParams(query);
  listQuery.delete("pair");
  if (listAddress === `${listQuery}`) return;
  list = await ask(`/api/pairs?${listQuery}`);
  listAddress = `${listQuery}`;
}

async function show() {
  const search = location.search;
  try {
    const query = inAddress();
    const position = query.get("pair");
    const pair = position === null ? null : await ask(`/api/pairs/${encodeURIComponent(position)}`);
    await loadList(query);
    if (search !== location.search) return; // the reader has moved on meanwhile
    byId("problem").hidden = true;
    byId("list").hidden = pair !== null;
    byId("pair").hidden = pair === null;
    document.body.classList.toggle("open-pair", pair !== null);
    if (pair === null) showList(query);
    else showPair(pair);
  } catch (error) {
    byId("problem").replaceChildren(textNodes(error.message));
    byId("problem").hidden = false;
  }
}

// --- elements ------------------------------------------------------------------------------------

function textNodes(text) {
  const nodes = document.createDocumentFragment();
  text.split(UNSEEN).forEach((part, index) => {
    if (index % 2 === 0) return nodes.append(part);
    const code = document.createElement("span");
    code.className = "unseen";
    code.textContent = `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    nodes.append(code);
  });
  return nodes;
}

function element(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.map((child) => (typeof child === "string" ? textNodes(child) : child)));
  return node;
}

const number = (value, digits = 2) => (value === null ? "null" : value.toFixed(digits));
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const title = (ruleId) => study.rules.find((rule) => rule.rule_id === ruleId)?.title ?? ruleId;
const chip = (text) => element("span", { class: "chip" }, text);

const runName = (runKey) => study.runs.find((run) => run.run_key === runKey).name;

// Both responses on a line from 0 to 1.
function scale(chosen, rejected) {
  const line = element("span", { class: "scale", "aria-hidden": "true" });
  for (const [name, value] of [["rejected", rejected], ["chosen", chosen]]) {
    if (value === null) continue;
    const mark = element("span", { class: name });
    mark.style.left = `${100 * value}%`;
    line.append(mark);
  }
  return line;
}

function link(changes, attributes, ...children) {
  const node = element("a", { href: address(changes), ...attributes }, ...children);
  node.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // open a new tab
    event.preventDefault();
    go(changes);
  });
  return node;
}

// --- the list --------------------------------------------------------------------------------------

function showStudy() {
  document.title = `${study.study} · ENCORE browse`;
  byId("study").replaceChildren(textNodes(study.study));
  const counts = [[study.num_pairs, "pair"], [study.sources.length, "source"]];
  counts.push([study.rules.length, "rule"], [study.runs.length, "run"]);
  byId("facts").textContent = counts.map(([count, noun]) => counted(count, noun)).join(" · ");
  byId("synthetic").hidden = study.synthetic.length === 0;
  byId("synthetic").lastElementChild.replaceChildren(
    textNodes(`${study.synthetic.join(", ")}: an example, not evidence.`),
  );
  const missing = study.runs.filter((run) => run.num_missing_shards);
  byId("missing").hidden = missing.length === 0;
  byId("missing").replaceChildren(
    ...missing.map((run) => element("li", {},
      `${runName(run.run_key)}: ${run.num_missing_shards} of ${counted(run.num_shards, "shard")} `
      + "missing, damaged or failed and not shown")),
  );
  const choices = {
    rule: study.rules.map((rule) => [rule.rule_id, rule.title]),
    null: Object.entries(study.null_reasons)
      .map(([reason, count]) => [reason, `null: ${reason} (${count.toLocaleString("en")})`]),
    run: study.runs.map((run) => [run.run_key, runName(run.run_key)]),
    source: study.sources.map((source) => [source, source]),
  };
  for (const [name, values] of Object.entries(choices)) {
    const select = byId("filters").elements[name];
    for (const [value, text] of values) select.append(element("option", { value }, text));
    select.disabled = values.length < 2 && name !== "null";
  }
  const disagreements = byId("filters").elements.disagreement;
  disagreements.querySelector("[value=judges]").disabled = study.runs.length < 2;
  disagreements.querySelector("[value=people]").disabled = study.num_labels === 0;
}

function showList(query) {
  for (const name of FILTERS) byId("filters").elements[name].value = query.get(name) ?? "";
  const sort = query.get("sort") ?? "";
  const order = query.get("disagreement") && !sort ? "; the largest difference first" : "";
  const rule = query.get("rule");
  const figures = rule ? `ratings under “${title(rule)}”` : "mean ratings over the rules";
  byId("count").replaceChildren(
    textNodes(`${counted(list.num_pairs, "pair")}${order}. Figures: ${figures}, `),
    element("span", { class: "legend chosen" }, "chosen"), " and ",
    element("span", { class: "legend rejected" }, "rejected"), ".",
  );
  byId("sorts").replaceChildren("Sort: ", ...Object.entries(SORTS).flatMap(([name, text]) => {
    const isSorted = sort.replace("-", "") === name;
    const arrow = isSorted ? (sort[0] === "-" ? " ↓" : " ↑") : "";
    const next = sort === name ? `-${name}` : name;
    const attributes = isSorted ? { "aria-current": "true" } : {};
    return [link({ sort: next, page: null }, attributes, text + arrow), " "];
  }), csvButton());
  byId("pairs").replaceChildren(...list.rows.map((row) => element("li", {}, listRow(row))));
  byId("pairs").start = (list.page - 1) * list.page_size + 1;
  const pages = [`Page ${list.page} of ${Math.max(list.num_pages, 1)}`];
  if (list.page > 1) pages.unshift(link({ page: list.page - 1 }, {}, "← previous"));
  if (list.page < list.num_pages) pages.push(link({ page: list.page + 1 }, {}, "next →"));
  document.querySelector(".pages").replaceChildren(...pages);
  rowOf(lastPosition)?.focus();
  lastPosition = null;
}

function listRow(row) {
  return link({ pair: row.position }, { class: "row", "data-position": row.position },
    element("span", { class: "opening", dir: "auto" }, row.opening || "(an empty message)"),
    element("span", {},
      element("span", { class: "about" }, `${row.source} · ${row.pair_id.slice(0, 8)} `),
      ...(row.note ? [element("span", { class: "note" }, `✎ ${row.note}`)] : []),
      ...(row.runs.length ? row.runs.map(runFigures) : [chip("not rated")])));
}

function csvButton() {
  const button = element("button", { type: "button", class: "theme" }, "Save the list as CSV");
  button.addEventListener("click", () => saveCsv().catch((error) => {
    byId("problem").replaceChildren(textNodes(error.message));
    byId("problem").hidden = false;
  }));
  return button;
}

// A row for each pair and run. A cell that a spreadsheet would run as a formula gets an apostrophe.
async function saveCsv() {
  const query = inAddress();
  query.set("page", "all");
  const { rows } = await ask(`/api/pairs?${query}`);
  const cell = (value) => {
    const text = `${value ?? ""}`;
    const isFormula = typeof value === "string" && /^[=+\-@\t\r]/.test(text);
    return `"${(isFormula ? `'${text}` : text).replaceAll('"', '""')}"`;
  };
  const figures = ["chosen", "rejected", "num_rules", "num_nulls", "num_against"];
  const lines = [["pair_id", "source", "prompt", "note", "run", ...figures]];
  for (const row of rows) {
    for (const run of row.runs.length ? row.runs : [{}]) {
      const name = run.run_key ? runName(run.run_key) : "";
      const texts = [row.pair_id, row.source, row.opening, row.note, name];
      lines.push([...texts, ...figures.map((figure) => run[figure])]);
    }
  }
  const content = lines.map((line) => `${line.map(cell).join(",")}\r\n`);
  const saved = element("a", { download: `${study.study}-pairs.csv` });
  saved.href = URL.createObjectURL(new Blob(["\ufeff", ...content], { type: "text/csv" }));
  saved.click();
  setTimeout(() => URL.revokeObjectURL(saved.href), 10_000);
}

function runFigures(run) {
  const chips = [];
  if (run.num_nulls) chips.push(chip(counted(run.num_nulls, "null")));
  if (run.num_against) {
    const under = run.num_rules > 1 ? ` in ${counted(run.num_against, "rule")}` : "";
    chips.push(chip(`chosen below rejected${under}`));
  }
  return element("span", { class: "figures-of-run" },
    element("span", { class: "judge" }, runName(run.run_key)),
    scale(run.chosen, run.rejected),
    element("span", { class: "chosen" }, number(run.chosen)),
    element("span", { class: "rejected" }, number(run.rejected)),
    ...chips);
}

// --- one pair --------------------------------------------------------------------------------------

function showPair(pair) {
  lastPosition = pair.position;
  const index = list.rows.findIndex((row) => row.position === pair.position);
  const ordinal = (list.page - 1) * list.page_size + index + 1;
  const block = (name, text, kind = "") => element("section", { class: `text ${kind}` },
    element("h3", {}, name), element("p", { class: "said", dir: "auto" }, text));
  const rated = pair.runs.filter((run) => run.ratings.length);
  const unratedRuns = pair.runs.filter((run) => !run.ratings.length);
  const otherPromptRuns = rated.filter((run) => !run.is_prompt_current);
  byId("pair").replaceChildren(
    element("p", { class: "pages" },
      link({ pair: null }, {}, "← list"),
      index < 0 ? "" : `${ordinal.toLocaleString("en")} of ${counted(list.num_pairs, "pair")}`),
    element("h2", { tabindex: "-1" }, `Pair ${pair.pair_id}`),
    element("p", { class: "about" }, `source ${pair.source}`),
    element("div", { class: "sides" },
      element("div", { class: "ratings" },
        element("h2", {}, "Ratings"),
        ...unratedRuns.map((run) => element("p", { class: "missing" },
          `Not rated in run ${runName(run.run_key)}: its shard is not done, or a pilot left it out.`)),
        ...otherPromptRuns.map((run) => element("p", { class: "missing" },
          `Run ${runName(run.run_key)} used another version of the prompt than the one displayed.`)),
        ...study.rules.map((rule) => ruleCard(rule, rated, pair.people))
          .filter((card) => card !== null)),
      element("div", {},
        ...pair.prompt.map((turn) => block(turn.role, turn.content)),
        element("div", { class: "responses" },
          block("chosen", pair.chosen, "chosen"), block("rejected", pair.rejected, "rejected")),
        noteBox(pair))),
  );
  scrollTo(0, 0);
  byId("pair").querySelector("h2").focus({ preventScroll: true });
}

function noteBox(pair) {
  const text = element("textarea", { id: "note", rows: "3", maxlength: "2000" }, pair.note);
  const status = element("small", { role: "status" });
  text.addEventListener("change", async () => {
    status.textContent = "";
    try {
      const answer = await fetch(`/api/pairs/${pair.position}/note`, { method: "PUT", body: text.value });
      if (!answer.ok) throw new Error((await answer.json()).error);
      listAddress = null; // the list has the note
      status.textContent = "Saved in notes.json of the study.";
    } catch (error) {
      status.textContent = `Not saved: ${error.message}`;
    }
  });
  return element("label", { class: "text" }, element("h3", {}, "Note"), text, status);
}

// A rule's rating of both responses in every run; prompts and replies are folded.
function ruleCard(rule, runs, people) {
  const lines = [];
  const details = [];
  for (const run of runs) {
    const of = (response) => run.ratings.find(
      (rating) => rating.rule_id === rule.rule_id && rating.response === response);
    const [chosen, rejected] = [of("chosen"), of("rejected")];
    if (!chosen || !rejected) continue;
    const chips = isBelow(chosen, rejected) ? [chip("chosen below rejected")] : [];
    const isNull = [chosen, rejected].some((rating) => rating.rating === null);
    lines.push(element("span", { class: "figures-of-run" },
      element("strong", {}, runs.length > 1 ? runName(run.run_key) : rule.title),
      scale(chosen.rating, rejected.rating),
      element("span", { class: "chosen" }, number(chosen.rating)),
      element("span", { class: "rejected" }, number(rejected.rating)),
      ...chips, ...(isNull ? [chip("null")] : [])));
    details.push(
      element("p", { class: "judge" }, runName(run.run_key)),
      element("div", { class: "responses" }, ratingBlock(chosen), ratingBlock(rejected)),
      prompts(chosen, rejected));
  }
  if (!lines.length) return null;
  const labels = people.filter((row) => row.rule_id === rule.rule_id)
    .map((row) => chip(`people: ${row.response} ${number(row.label)}`));
  const isAsked = inAddress().get("rule") === rule.rule_id ? " asked" : "";
  return element("details", { class: `card${isAsked}`, ...(isAsked ? { open: "" } : {}) },
    element("summary", {}, ...(runs.length > 1 ? [element("strong", {}, rule.title)] : []),
      ...lines, ...labels), ...details);
}

const isBelow = (chosen, rejected) =>
  chosen.rating !== null && rejected.rating !== null && chosen.rating < rejected.rating;

function ratingBlock(rating) {
  const notes = [];
  if (rating.raw_reply !== null) notes.push(
    element("p", {}, "reply ", element("code", { class: "said", dir: "auto" }, rating.raw_reply)));
  if (rating.null_reason !== null) notes.push(chip(rating.null_reason));
  if (rating.num_truncated_tokens) notes.push(chip(`${rating.num_truncated_tokens} tokens cut`));
  const names = { expected_rating: "mean", label_mass: "label mass", reply_entropy: "entropy" };
  for (const [column, name] of Object.entries(names)) {
    const value = rating[column] ?? null;
    if (value !== null) notes.push(element("small", {}, `${name} ${number(value, 3)}`));
  }
  return element("div", { class: `rating ${rating.response}` },
    element("strong", {}, number(rating.rating)), rating.response, ...notes);
}

function prompts(...ratings) {
  const details = element("details", {}, element("summary", {}, "Prompts"));
  const fill = () => details.append(...ratings.map((rating) =>
    element("p", { class: "said prompt", dir: "auto" }, rating.prompt)));
  details.addEventListener("toggle", fill, { once: true });
  return details;
}

// --- keys ------------------------------------------------------------------------------------------

const rowOf = (position) => document.querySelector(`.row[data-position="${position}"]`);

function moveInList(by) {
  const rows = [...document.querySelectorAll(".row")];
  const index = rows.indexOf(document.activeElement);
  rows[Math.min(Math.max(index < 0 ? 0 : index + by, 0), rows.length - 1)]?.focus();
}

async function turnPage(by) {
  const page = list.page + by;
  if (page < 1 || page > list.num_pages) return;
  await go({ page });
  document.querySelector(".row")?.focus();
}

async function nextPair(by) {
  const index = list.rows.findIndex((row) => row.position === lastPosition) + by;
  if (list.rows[index]) return go({ pair: list.rows[index].position });
  const page = list.page + by;
  if (page < 1 || page > list.num_pages) return;
  await loadList(address({ page })).catch(() => {}); // `show` displays the error
  await go({ page, pair: list.rows.at(by > 0 ? 0 : -1).position });
}

const help = () => byId("help").showModal();
// A press of Enter on a link or a button is left to the browser.
const openFirst = () => document.querySelector(".row")?.click();
const IN_FILTER = { Escape: () => document.activeElement.blur() };
const IN_LIST = {
  j: () => moveInList(1), ArrowDown: () => moveInList(1),
  k: () => moveInList(-1), ArrowUp: () => moveInList(-1),
  Enter: openFirst,
  n: () => turnPage(1), p: () => turnPage(-1),
  "/": () => { byId("filter-box").open = true; byId("filters").elements.text.focus(); }, "?": help,
};
const IN_PAIR = {
  e: () => byId("note").focus(),
  j: () => nextPair(1), k: () => nextPair(-1),
  Escape: () => go({ pair: null }),
  "/": () => go({ pair: null }).then(IN_LIST["/"]), "?": help,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open || !list) return;
  const isTyping = event.target.closest("input, select, textarea");
  const action = (isTyping ? IN_FILTER : byId("pair").hidden ? IN_LIST : IN_PAIR)[event.key];
  if (!action || (event.key === "Enter" && event.target !== document.body)) return;
  event.preventDefault();
  action();
});
byId("help-button").addEventListener("click", help);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("change", (event) =>
  go({ [event.target.name]: event.target.value, page: null }));
addEventListener("popstate", show);

byId("filter-box").open = innerWidth > 768;
study = await ask("/api/study");
showStudy();
await show();
