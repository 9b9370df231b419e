"""The paper's Theorem 1 on ratings: what a Bradley-Terry loss teaches about rules' weights."""
