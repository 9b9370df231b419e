// Page for one annotator: it shows one item at a time, stores the answers in this browser, and
// saves them to a file. Every text of the study becomes a text node, so that it cannot be markup.
"use strict";

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const { items, questions } = data;
// A key for each choice of an item, over all its questions; those for "cannot say" come last.
const KEYS = "1234567890qwerty";
// Headings of texts that are turns of a conversation.
const SPEAKERS = ["system", "user", "assistant", "response"];
const STORED_AS = `encore-annotate:${data.sample}:${data.annotator}`;

const answers = {}; // value by question name, and the comment, by item id
let current = 0; // index of the shown item

function element(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// --- progress ------------------------------------------------------------------------------------

// Each item's answers have a key of their own. So a tab that has not read what another tab stored
// can replace the answers to the item that it shows, and no others.
function store(name, value) {
  try {
    localStorage.setItem(`${STORED_AS}:${name}`, JSON.stringify(value));
  } catch {
    const problem = "This browser keeps no progress: save the file before you close the page.";
    byId("problem").textContent = problem;
    byId("problem").hidden = false;
  }
}

const storeAnswers = (item) => store(item.item_id, answers[item.item_id]);

function readStored(name) {
  try {
    return JSON.parse(localStorage.getItem(`${STORED_AS}:${name}`));
  } catch {
    return null; // damaged, or the browser stores nothing
  }
}

// Stored answers may be foreign: only values of this page's items and choices are read.
function readAnswers() {
  for (const item of items) {
    const stored = readStored(item.item_id);
    for (const question of questions) {
      const value = stored?.[question.name];
      if (choicesOf(question).some(([choice]) => choice === value)) {
        setAnswer(item, question.name, value);
      }
    }
    const comment = stored?.[data.comment];
    if (typeof comment === "string") setAnswer(item, data.comment, comment);
  }
}

const setAnswer = (item, name, value) => {
  answers[item.item_id] = { ...answers[item.item_id], [name]: value };
};
const choicesOf = (question) => [...question.choices, [data.cannot_say, data.cannot_say]];
const answerTo = (item, question) => answers[item.item_id]?.[question.name];
const isAnswered = (item) => questions.every((question) => answerTo(item, question) !== undefined);
const numAnswered = () => items.filter(isAnswered).length;

// --- one item ------------------------------------------------------------------------------------

function showItem() {
  const item = items[current];
  byId("position").textContent = `Item ${current + 1} of ${items.length}`;
  byId("cards").className = `${data.kind}`;
  byId("cards").replaceChildren(...item.cards.map(cardElement));
  let keyIndex = 0;
  const choiceElements = questions.map((question) => (
    question.choices.map((choice) => choiceElement(question, choice, KEYS[keyIndex++]))));
  byId("choices").replaceChildren(...questions.map((question, index) => (
    element("fieldset", {}, element("legend", {}, question.text), ...choiceElements[index],
      choiceElement(question, [data.cannot_say, data.cannot_say], KEYS[keyIndex++])))));
  byId("comment").value = answers[item.item_id]?.[data.comment] ?? "";
  byId("comment-box").open = byId("comment").value !== "";
  byId("previous").disabled = current === 0;
  byId("next").disabled = current === items.length - 1;
  showCount();
  showLastUserTurn();
}

// Where cards scroll by themselves, the turn that the response answers is seen: its end, or its
// beginning if it is longer than the card.
function showLastUserTurn() {
  const turn = [...document.querySelectorAll("#cards .turn.user")].at(-1);
  if (!turn) return;
  const card = turn.closest("article");
  const end = turn.offsetTop + turn.offsetHeight + 12 - card.clientHeight;
  card.scrollTop = Math.min(end, turn.offsetTop - 12);
}

function cardElement(card) {
  const parts = card.parts.map(([name, text]) => element("section",
    SPEAKERS.includes(name) ? { class: `turn ${name === "user" ? "user" : "other"}` } : {},
    ...(name ? [element("h3", {}, name)] : []),
    ...(text ? [element("p", { class: "text", dir: "auto" }, text)] : [])));
  return element("article", {}, element("h2", { dir: "auto" }, card.title), ...parts);
}

function choiceElement(question, [value, text], key) {
  const input = element("input", { type: "radio", name: question.name, value });
  input.checked = answerTo(items[current], question) === value;
  input.addEventListener("change", () => answer(question.name, value));
  return element("label", { "data-key": key }, input, element("kbd", {}, key), text);
}

function showCount() {
  const num = numAnswered();
  byId("progress").max = items.length;
  byId("progress").value = num;
  byId("facts").textContent = `${num} of ${items.length} answered · ${data.annotator} · `
    + `sample ${data.sample}`;
}

// The answer that completes an item leads to the next one; a changed answer stays at its item.
function answer(name, value) {
  const item = items[current];
  const wasAnswered = isAnswered(item);
  setAnswer(item, name, value);
  storeAnswers(item);
  showCount();
  const numLeft = items.length - numAnswered();
  byId("status").textContent = numLeft ? "" : "All items are answered: save the file with s.";
  if (wasAnswered || !isAnswered(item) || !numLeft) return;
  byId("status").textContent = `Item ${current + 1} is answered. `
    + (current + 1 < items.length ? "Previous (p) goes back to it." : "Unanswered (u) shows one that is not.");
  goTo(current + 1);
}

function goTo(index) {
  if (index < 0 || index >= items.length) return;
  current = index;
  byId("instructions").open = false;
  store("position", current);
  showItem();
  scrollTo(0, 0);
  byId("position").focus({ preventScroll: true });
}

function goToUnanswered() {
  const indices = [...items.keys()].map((offset) => (current + 1 + offset) % items.length);
  const unanswered = indices.find((index) => !isAnswered(items[index]));
  if (unanswered === undefined) byId("status").textContent = "All items are answered.";
  else goTo(unanswered);
}

// --- the file ------------------------------------------------------------------------------------

function save() {
  const names = [...questions.map((question) => question.name), data.comment];
  const saved = items.flatMap((item) => names
    .filter((name) => (answers[item.item_id]?.[name] ?? "") !== "")
    .map((name) => ({ item_id: item.item_id, question: name, value: answers[item.item_id][name] })));
  const content = { sample: data.sample, annotator: data.annotator, answers: saved };
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

const ACTIONS = {
  n: () => goTo(current + 1), p: () => goTo(current - 1), u: goToUnanswered, s: save,
  c: () => { byId("comment-box").open = true; byId("comment").focus(); },
};
const BUTTONS = { next: "n", previous: "p", unanswered: "u", save: "s" };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === byId("comment")) {
    if (event.key === "Escape") byId("position").focus();
    return;
  }
  const choice = document.querySelector(`label[data-key="${CSS.escape(event.key)}"] input`);
  const action = choice ? () => { choice.focus(); choice.click(); } : ACTIONS[event.key];
  if (!action || (choice && event.repeat)) return; // a key that is held answers one item
  event.preventDefault();
  action();
});
for (const [id, key] of Object.entries(BUTTONS)) byId(id).addEventListener("click", ACTIONS[key]);
byId("comment").addEventListener("input", () => {
  setAnswer(items[current], data.comment, byId("comment").value.trim());
  storeAnswers(items[current]);
});
byId("choices").addEventListener("click", (event) => {
  if (event.detail > 1) event.preventDefault(); // the second click would answer the next item
}, { capture: true });
byId("questions").addEventListener("submit", (event) => event.preventDefault());

addEventListener("storage", ({ key }) => { // another tab stored something
  if (!key?.startsWith(`${STORED_AS}:`)) return;
  readAnswers();
  showItem();
});

readAnswers();
const position = readStored("position");
if (Number.isInteger(position) && items[position]) current = position;
for (const text of document.querySelectorAll("[data-kind]")) {
  text.hidden = text.dataset.kind !== data.kind;
}
byId("instructions").open = current === 0;
showItem();
