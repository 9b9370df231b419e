// One page for one annotator: items one after the other, answers kept in this browser, a file at
// the end. Every text of the study becomes a text node, never markup.
"use strict";

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const { items, questions } = data;
const KEYS = "1234567890qwert"; // of choices, in the order of all choices of an item
const STORED_AS = `encore-annotate:${data.sample}:${data.annotator}`;

let answers = {}; // by item, then by question
let at = 0;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// --- progress ------------------------------------------------------------------------------------

function remember() {
  try {
    localStorage.setItem(STORED_AS, JSON.stringify({ answers, at }));
  } catch {
    const problem = "This browser keeps no progress: save the file before you close the page.";
    byId("problem").textContent = problem;
    byId("problem").hidden = false;
  }
}

// What is kept may be of a damaged or foreign origin: only known items and choices are taken.
function recall() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORED_AS)) ?? {};
    for (const item of items) {
      for (const question of questions) {
        const value = kept.answers?.[item.item_id]?.[question.name];
        if (question.choices.some(([known]) => known === value)) put(item, question.name, value);
      }
    }
    if (Number.isInteger(kept.at) && items[kept.at]) at = kept.at;
  } catch {
    answers = {};
  }
}

const put = (item, name, value) => {
  answers[item.item_id] = { ...answers[item.item_id], [name]: value };
};
const given = (item, question) => answers[item.item_id]?.[question.name];
const isAnswered = (item) => questions.every((question) => given(item, question) !== undefined);
const numAnswered = () => items.filter(isAnswered).length;

// --- one item ------------------------------------------------------------------------------------

function show() {
  const item = items[at];
  byId("place").textContent = `Item ${at + 1} of ${items.length}`;
  byId("cards").className = `${data.kind}`;
  byId("cards").replaceChildren(...item.cards.map(shownCard));
  let place = 0;
  byId("choices").replaceChildren(...questions.map((question) => {
    const choices = question.choices.map((choice) => shownChoice(question, choice, place++));
    return element("fieldset", {}, element("legend", {}, question.text), ...choices);
  }));
  byId("previous").disabled = at === 0;
  byId("next").disabled = at === items.length - 1;
  count();
}

function shownCard(card) {
  const parts = card.parts.map(([name, text]) => element("section", {},
    ...(name ? [element("h3", {}, name)] : []),
    element("p", { class: "said", dir: "auto" }, text)));
  return element("article", {}, element("h2", { dir: "auto" }, card.title), ...parts);
}

function shownChoice(question, [value, text], place) {
  const input = element("input", { type: "radio", name: question.name, value });
  input.checked = given(items[at], question) === value;
  input.addEventListener("change", () => answer(question.name, value));
  return element("label", { "data-key": KEYS[place] },
    input, element("kbd", {}, KEYS[place]), text);
}

function count() {
  const num = numAnswered();
  byId("progress").max = items.length;
  byId("progress").value = num;
  byId("facts").textContent = `${num} of ${items.length} answered · ${data.annotator} · `
    + `sample ${data.sample}`;
}

function answer(name, value) {
  put(items[at], name, value);
  remember();
  count();
  const rest = items.length - numAnswered();
  byId("status").textContent = rest ? "" : "All items are answered: save the file with s.";
}

function go(place) {
  if (place < 0 || place >= items.length) return;
  at = place;
  remember();
  show();
  scrollTo(0, 0);
  byId("place").focus({ preventScroll: true });
}

function goToOpen() {
  const after = [...items.keys()].map((place) => (at + 1 + place) % items.length);
  const open = after.find((place) => !isAnswered(items[place]));
  if (open === undefined) byId("status").textContent = "All items are answered.";
  else go(open);
}

// --- the file ------------------------------------------------------------------------------------

function save() {
  const found = items.flatMap((item) => questions
    .filter((question) => given(item, question) !== undefined)
    .map((question) => ({
      item_id: item.item_id, question: question.name, value: given(item, question),
    })));
  const content = { sample: data.sample, annotator: data.annotator, answers: found };
  const blob = new Blob([`${JSON.stringify(content, null, 1)}\n`], { type: "application/json" });
  const link = element("a", { download: `${data.sample}-${data.annotator}.json` });
  link.href = URL.createObjectURL(blob);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  const missing = items.length - numAnswered();
  byId("status").textContent = `Saved ${link.download}`
    + (missing ? `; ${missing} of ${items.length} items are not answered yet.` : ".");
}

// --- keys ----------------------------------------------------------------------------------------

const ACTIONS = { n: () => go(at + 1), p: () => go(at - 1), u: goToOpen, s: save };
const BUTTONS = { next: "n", previous: "p", open: "u", save: "s" };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const choice = document.querySelector(`label[data-key="${CSS.escape(event.key)}"] input`);
  const action = choice ? () => { choice.focus(); choice.click(); } : ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
for (const [id, key] of Object.entries(BUTTONS)) byId(id).addEventListener("click", ACTIONS[key]);
byId("questions").addEventListener("submit", (event) => event.preventDefault());

recall();
show();
