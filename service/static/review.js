"use strict";
// The review page. The text of files is inserted only as text, never as markup.
const ROLES = {
  review: { code: "_by_hand", note: "note_by_hand", coder: "coder", time: "decided_at", file: "reviewed" },
  second: { code: "_by_hand_2", note: "note_by_hand_2", coder: "coder_2", time: "decided_at_2", file: "second" },
  adjudicate: { code: "_adjudicated", note: "note_adjudicated", coder: "adjudicator", time: "adjudicated_at", file: "adjudicated" },
};
const HEIGHT = 56;
let table = null, s = null;

const count = (n) => n.toLocaleString("en");
const isBlank = (text) => !text.trim();

// ---- opening
async function readFile(file) {
  if (file.size > MOST.bytes) throw new Error(`The file has over ${MOST.bytes >> 20} MB. Split it.`);
  const bytes = await file.arrayBuffer();
  let text;
  try { text = new TextDecoder("utf-8", { fatal: true }).decode(bytes); } catch { text = new TextDecoder("windows-1252").decode(bytes); }
  return readTable(text);
}
function failed(error) {
  at("problem").textContent = error.message[0].toUpperCase() + error.message.slice(1);
}
at("task").addEventListener("change", () => { at("other-box").hidden = at("task").value !== "adjudicate"; });
at("file").addEventListener("change", async () => {
  at("problem").textContent = "";
  table = null;
  const file = at("file").files[0], column = at("column");
  column.disabled = true;
  column.replaceChildren(make("option", "open a file first"));
  if (!file) return;
  try {
    table = await readFile(file);
    offerColumns(table.columns);
    column.disabled = false;
  } catch (error) { failed(error); }
});
async function codeFirst(file, column) {
  at("start").textContent = "Coding …";
  const asked = new URLSearchParams({ column, top_k: "5" });
  if (at("threshold").value !== "") asked.set("threshold", at("threshold").value);
  const response = await fetch("file?" + asked, { method: "POST", headers: headers("text/csv"), body: file });
  if (!response.ok) throw new Error(await refusal(response));
  const coded = readTable(await response.text());
  if (coded.rows.length !== Number(response.headers.get("X-Rows"))) throw new Error("the answer ended early. Open the file again.");
  at("warnings").replaceChildren(...warnedBy(response));
  return coded;
}
at("open").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("problem").textContent = "";
  at("start").disabled = true;
  try {
    const file = at("file").files[0], column = at("column").value;
    if (!file) throw new Error("Choose a CSV file first.");
    if (!table) table = await readFile(file);
    if (!table.rows.length) throw new Error("The file has no rows.");
    const response = await fetch("codes", { headers: headers("application/json") });
    if (!response.ok) throw new Error(await refusal(response));
    const list = await response.json();
    at("warnings").replaceChildren();
    const coded = table.columns.includes("code") ? table : await codeFirst(file, column);
    const other = at("task").value === "adjudicate" && at("other").files[0] ? await readFile(at("other").files[0]) : null;
    begin(coded, list, column, other, file.name);
  } catch (error) { failed(error); } finally {
    at("start").disabled = false;
    at("start").textContent = "Open";
  }
});

function begin(coded, list, column, other, name) {
  const task = at("task").value, role = ROLES[task], { columns, rows } = coded;
  const cell = reader(columns);
  const threshold = at("threshold").value === "" ? null : Number(at("threshold").value);
  const titles = new Map(list.codes.map((one) => [one.code, one.title]));
  const first = rows.map((row) => cell(row, "code_by_hand").trim());
  let second = rows.map((row) => cell(row, "code_by_hand_2").trim());
  let otherNote = rows.map((row) => cell(row, "note_by_hand_2"));
  let otherName = rows.map((row) => cell(row, "coder_2"));
  if (task === "adjudicate") {
    if (other) {
      const own = reader(other.columns);
      if (other.rows.length !== rows.length) throw new Error(`The other file has ${count(other.rows.length)} rows, this one ${count(rows.length)}. Open two codings of one file.`);
      rows.forEach((row, i) => {
        if (cell(row, column) !== own(other.rows[i], column)) throw new Error(`Row ${i + 1}: the two files have different narratives. Open two codings of one file.`);
      });
      const by = other.columns.includes("code_by_hand_2") ? "_by_hand_2" : "_by_hand";
      second = other.rows.map((row) => own(row, "code" + by).trim());
      otherNote = other.rows.map((row) => own(row, "note" + by));
      otherName = other.rows.map((row) => own(row, by === "_by_hand" ? "coder" : "coder_2"));
    }
    if (![first, second].every((all) => all.some(Boolean))) {
      throw new Error("The file does not have two coders' codes (columns … _by_hand). Open the other coder's file too.");
    }
  }
  const decided = rows.map((row, i) => cell(row, "code" + role.code).trim() || (task === "adjudicate" && first[i] === second[i] ? first[i] : ""));
  s = {
    task, role, columns, rows, cell, column, name, list, titles, first, second, otherName, otherNote, decided,
    notes: rows.map((row) => cell(row, role.note)), tree: drawTree(list.codes, titles),
    when: rows.map((row) => cell(row, role.time)), who: rows.map((row) => cell(row, role.coder)),
    marks: rows.map((row) => marksOf(cell, row, list.sensitive, threshold)),
    view: [], position: 0, preview: 0, history: [], reasons: new Map(), asking: null, unsaved: false,
  };
  at("open").hidden = true;
  at("work").hidden = false;
  const digest = cell(rows[0], "bundle_digest");
  at("notice").hidden = !digest || digest === list.bundle_digest;
  at("notice").textContent = "The file was coded with another release. The words shown are from this service's release.";
  at("order").value = "looks";
  arrange();
}

// ---- the queue
const isDone = (row) => Boolean(s.decided[row]);
const differs = (row) => s.first[row] !== s.second[row];
function arrange() {
  const shown = at("shown").value;
  s.view = orderBy(at("order").value, s.marks).filter((row) => (s.task !== "adjudicate" || differs(row))
    && (shown === "all" || (shown === "done") === isDone(row)));
  s.position = 0;
  at("list").scrollTop = 0;
  show();
}
at("order").addEventListener("change", arrange);
at("shown").addEventListener("change", arrange);
function signs(row) {
  const marks = s.marks[row], out = [];
  if (marks.sensitive) out.push("sensitive");
  if (marks.low) out.push("low score");
  if (marks.size > 1) out.push(`${marks.size} codes in the set`);
  if (marks.blank) out.push("no code");
  return out;
}
function drawList() {
  const list = at("list"), from = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - 4);
  const to = Math.min(s.view.length, from + Math.ceil(list.clientHeight / HEIGHT) + 8);
  const spacer = make("div", "", "", { role: "presentation" });
  spacer.style.height = s.view.length * HEIGHT + "px";
  const items = [];
  for (let place = from; place < to; place += 1) {
    const row = s.view[place], marks = s.marks[row];
    const item = make("div", "", "item", { role: "option", id: "item-" + place, "aria-selected": place === s.position,
      "aria-posinset": place + 1, "aria-setsize": s.view.length });
    item.append(make("span", `${isDone(row) ? "✓ " : ""}${row + 1} · ${s.cell(s.rows[row], s.column).slice(0, 90)}`),
      make("span", [marks.score.toFixed(2), ...signs(row)].join(" · "), "what"));
    item.style.top = place * HEIGHT + "px";
    item.addEventListener("click", () => go(place));
    items.push(item);
  }
  list.replaceChildren(...items, spacer);
  if (s.position >= from && s.position < to) list.setAttribute("aria-activedescendant", "item-" + s.position);
  else list.removeAttribute("aria-activedescendant");
}
at("list").addEventListener("scroll", () => s && drawList());
at("list").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -s.view.length, End: s.view.length }[event.key];
  if (!step) return;
  event.preventDefault();
  go(Math.min(s.view.length - 1, Math.max(0, s.position + step)));
});
function go(place) {
  if (place < 0 || place >= s.view.length) return;
  s.position = place;
  s.preview = 0;
  show();
}
function reveal() {
  const list = at("list"), top = s.position * HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + HEIGHT - list.clientHeight;
}

// ---- the case
function candidates(row) {
  const out = candidatesOf(s.cell, s.rows[row]);
  if (s.task === "adjudicate") {
    const two = [[s.first[row], "first coder"], [s.second[row], "second coder"]].filter(([code]) => code);
    return [...two.map(([code, by]) => ({ code, score: (out.find((one) => one.code === code) || { score: null }).score, by })),
      ...out.filter((one) => !two.some(([code]) => code === one.code))].slice(0, 9);
  }
  return out;
}
function show() {
  const box = at("case"), within = box.contains(document.activeElement);
  reveal();
  drawList();
  drawBar();
  if (!s.view.length) {
    box.replaceChildren(make("p", s.task === "adjudicate" ? "No disagreement is left to show. Save the file." : "Nothing to show here."));
    return;
  }
  const row = s.view[s.position], head = make("div", "", "head");
  head.append(make("h2", `Case ${row + 1}`), ...signs(row).map((sign) => make("span", sign, "badge")));
  if (isDone(row)) head.append(make("span", "decided", "badge done"));
  const parts = [head, make("p", s.cell(s.rows[row], s.column), "narrative", { id: "narrative", tabindex: "0", role: "group", "aria-label": "Narrative" })];
  const ranked = make("ol", "", "candidates", { "aria-label": "Candidates" }), choices = candidates(row);
  const own = s.decided[row];
  const listed = own && !choices.some((one) => one.code === own) ? [...choices, { code: own, score: null, by: "chosen" }] : choices;
  listed.forEach((one, i) => {
    const item = make("li", "", i === s.preview ? "previewed" : ""), button = make("button", "", "", { type: "button", "aria-pressed": one.code === own });
    button.append(make("kbd", i < 9 ? String(i + 1) : ""), make("b", one.code),
      make("span", (s.titles.get(one.code) || "") + (one.by ? ` (${one.by})` : ""), "title"),
      make("span", one.score === null ? "" : percent(one.score), "score"), make("span", "", "why"));
    button.addEventListener("click", () => decide(one.code));
    button.addEventListener("focus", () => preview(i));
    button.addEventListener("mousemove", () => { if (s.preview !== i) preview(i); });
    item.append(button);
    ranked.append(item);
  });
  const find = make("div", "", "find");
  find.append(searchBox(), s.tree);
  parts.push(ranked, ...coderNotes(row), noteBox(row), find, others(row));
  box.replaceChildren(...parts);
  if (within) box.focus({ preventScroll: true });
  ask(row, listed);
}
function others(row) {
  const answer = /^(code|title|score)(_\d+)?$|^(needs_review|set|set_size|coder|coder_2|adjudicator|model|model_kind|bundle_digest|score_temperature)$|^(group|classification)(_|$)|_by_hand|_adjudicated|decided_at|adjudicated_at/;
  const names = s.columns.filter((name) => name !== s.column && !answer.test(name));
  const details = make("details", ""), list = make("dl", "");
  details.hidden = !names.length;
  for (const name of names) list.append(make("dt", name), make("dd", s.cell(s.rows[row], name)));
  details.append(make("summary", "Other columns"), list);
  return details;
}
function preview(i) {
  s.preview = i;
  document.querySelectorAll("ol.candidates li").forEach((item, n) => item.classList.toggle("previewed", n === i));
  paint();
}

// ---- notes
function noteBox(row) {
  const box = make("p", "", "note"), label = make("label", "Note on this case ", "", { for: "note" });
  const input = make("textarea", "", "", { id: "note", rows: "2", maxlength: "1000" });
  input.value = s.notes[row];
  input.addEventListener("input", () => { s.notes[row] = input.value; s.unsaved = true; });
  input.addEventListener("keydown", (event) => { if (event.key === "Escape") at("case").focus(); });
  label.append(make("kbd", "m"));
  box.append(label, input);
  return box;
}
function coderNotes(row) {
  if (s.task !== "adjudicate") return [];
  const two = [["First coder", s.cell(s.rows[row], "note_by_hand")], ["Second coder", s.otherNote[row]]];
  return two.filter(([, note]) => note.trim()).map(([who, note]) => make("p", `${who}: ${note}`, "hint"));
}

// ---- the words
async function ask(row, listed) {
  const key = row + " " + listed.map((one) => one.code).join(" "), text = s.cell(s.rows[row], s.column);
  const codes = listed.filter((one) => s.titles.has(one.code)).map((one) => one.code);
  if (s.asking) s.asking.abort();
  s.shown = key;
  if (s.reasons.has(key) || isBlank(text) || !codes.length || [...text].length > 20000) return paint();
  const asking = (s.asking = new AbortController());
  try {
    await new Promise((resolve) => setTimeout(resolve, 120));
    if (asking.signal.aborted) return;
    const response = await fetch("explain", { method: "POST", headers: headers("application/json"), signal: asking.signal,
      body: JSON.stringify({ narrative: text, codes: codes.slice(0, 9) }) });
    if (!response.ok) return;
    if (s.reasons.size > 200) s.reasons.clear();
    s.reasons.set(key, await response.json());
    if (s.shown === key) paint();
  } catch { /* a later case was faster, or the service is gone: decisions work without words */ }
}
function paint() {
  const answer = s.reasons.get(s.shown), row = s.view[s.position], box = at("narrative");
  if (!answer || !box) return;
  const letters = [...s.cell(s.rows[row], s.column)], items = [...document.querySelectorAll("ol.candidates li")];
  const word = (i) => letters.slice(...answer.words[i]).join("");
  const total = (reason) => reason.encoder.map((value, i) => value + (reason.lexical[i] || 0));
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
  let drawn = false;
  items.forEach((item, n) => {
    const code = item.querySelector("b").textContent, reason = answer.reasons.find((one) => one.code === code);
    if (!reason) return;
    const sums = total(reason), best = sums.map((_, i) => i).filter((i) => /[\p{L}\p{N}]/u.test(word(i))).sort((a, b) => sums[b] - sums[a]);
    const name = (i) => `${word(i)} ${signed(sums[i])}${reason.lexical[i] ? " (title word)" : ""}`;
    const pro = best.filter((i) => sums[i] > 0).slice(0, 3).map(name), con = best.filter((i) => sums[i] < 0).slice(-1).map(name);
    item.querySelector(".why").textContent = (pro.length ? "for: " + pro.join(", ") : "") + (con.length ? `${pro.length ? "; " : ""}against: ${con}` : "");
    if (n !== s.preview) return;
    drawn = true;
    const most = Math.max(...sums.map(Math.abs), 1e-9), parts = [];
    let end = 0;
    answer.words.forEach(([from, to], i) => {
      const level = sums[i] / most, exact = (reason.lexical[i] || 0) > 0;
      if (level < 0.15 && !exact) return;
      parts.push(letters.slice(end, from).join(""), make("mark", word(i), `w${level > 0.66 ? 3 : level > 0.33 ? 2 : 1}${exact ? " exact" : ""}`));
      end = to;
    });
    const read = Math.max(answer.read, end);
    parts.push(letters.slice(end, read).join(""));
    if (read < letters.length) parts.push(make("span", letters.slice(read).join(""), "unread", { title: "The encoder did not read this part." }));
    box.replaceChildren(...parts);
  });
  if (!drawn) box.textContent = letters.join("");
}

// ---- search
function searchBox() {
  const box = make("div", "", "search"), label = make("label", "Search the code list ", "", { for: "search" });
  const input = make("input", "", "", { id: "search", role: "combobox", autocomplete: "off", "aria-expanded": "false", "aria-controls": "results",
    "aria-autocomplete": "list" });
  const list = make("ul", "", "", { id: "results", role: "listbox", "aria-label": "Codes that match" });
  let matches = [], chosen = 0;
  const draw = () => {
    list.replaceChildren(...matches.map((one, i) => {
      const item = make("li", `${one.code} ${one.title}`, "", { role: "option", id: "match-" + i, "aria-selected": i === chosen });
      item.addEventListener("mousedown", (event) => { event.preventDefault(); decide(one.code); });
      return item;
    }));
    input.setAttribute("aria-expanded", String(matches.length > 0));
    if (matches.length) {
      input.setAttribute("aria-activedescendant", "match-" + chosen);
      at("match-" + chosen).scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };
  input.addEventListener("input", () => { matches = searchCodes(s.list.codes, input.value); chosen = 0; draw(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; matches = []; draw(); at("case").focus(); }
    else if (event.key === "Enter" && matches.length) decide(matches[chosen].code);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = Math.max(0, Math.min(matches.length - 1, chosen + (event.key === "ArrowDown" ? 1 : -1)));
      if (matches.length) draw();
    }
  });
  label.append(make("kbd", "/"));
  box.append(label, input, list);
  return box;
}

// ---- the tree of groups
function drawTree(codes, titles) {
  const top = treeOf(codes), box = make("details", "", "tree");
  box.hidden = !top.groups.size;
  box.append(make("summary", "Groups of the classification"));
  fill(box, top, titles);
  return box;
}
function fill(box, group, titles) {
  for (const one of group.groups.values()) {
    const inner = make("details", ""), title = titles.get(one.name);
    inner.append(make("summary", `${one.name}${title ? " " + title : ""} (${count(size(one))})`));
    inner.addEventListener("toggle", () => { if (inner.open && inner.children.length === 1) fill(inner, one, titles); });
    box.append(inner);
  }
  const list = make("ul", "");
  for (const one of group.codes) {
    const item = make("li", ""), button = make("button", `${one.code} ${one.title}`, "quiet", { type: "button" });
    if (one.description) button.title = one.description;
    button.addEventListener("click", () => decide(one.code));
    item.append(button);
    list.append(item);
  }
  if (group.codes.length) box.append(list);
}

// ---- decisions
function set(row, code, when) {
  s.decided[row] = code;
  s.when[row] = when;
  s.who[row] = at("coder").value.trim();
  s.unsaved = true;
}
function decide(code) {
  const row = s.view[s.position];
  s.history.push({ row, code: s.decided[row], when: s.when[row], position: s.position, view: s.view });
  set(row, code, new Date().toISOString().slice(0, 19) + "Z");
  if (s.position + 1 < s.view.length) go(s.position + 1);
  else show();
}
function undo() {
  const last = s.history.pop();
  if (!last) return;
  set(last.row, last.code, last.when);
  s.view = last.view;
  s.position = last.position;
  s.preview = 0;
  show();
}
function drawBar() {
  const rows = s.rows.map((_, i) => i).filter((row) => s.task !== "adjudicate" || differs(row)), done = rows.filter(isDone).length;
  at("progress").textContent = `${s.view.length ? `Case ${count(s.position + 1)} of ${count(s.view.length)} · ` : ""}${count(done)} of ${count(rows.length)} decided`;
  at("progress-bar").max = rows.length || 1;
  at("progress-bar").value = done;
  at("agreement").textContent = agreements(done === rows.length);
}
function agreements(complete) {
  const sides = {
    review: ["With the model", (i) => [s.decided[i], s.cell(s.rows[i], "code")]],
    second: ["With the first coder", (i) => [s.decided[i], s.first[i]]],
    adjudicate: ["Between the coders", (i) => [s.first[i], s.second[i]]],
  };
  const [words, pair] = sides[s.task];
  if (s.task === "second" && !complete) return "Agreement is shown at the end";
  const { n, share, kappa } = agreement(s.rows.map((_, i) => pair(i)));
  return n ? `${words}: ${percent(share)}, κ ${kappa === null ? "–" : kappa.toFixed(2)}` : "";
}

// ---- saving
function savedTable() {
  const { role } = s, more = [];
  if (s.task === "adjudicate") {
    more.push(["code_by_hand_2", (i) => s.second[i]]);
    more.push(["coder_2", (i) => s.otherName[i]]);
  }
  if (s.task === "adjudicate" && s.otherNote.some(Boolean)) more.push(["note_by_hand_2", (i) => s.otherNote[i]]);
  more.push(["code" + role.code, (i) => s.decided[i]]);
  if (s.notes.some(Boolean)) more.push([role.note, (i) => s.notes[i]]);
  const owner = [role.coder, (i) => (s.decided[i] ? s.who[i] : "")];
  if (at("with-coder").checked) more.push(owner);
  if (at("with-time").checked) more.push([role.time, (i) => s.when[i]]);
  const names = new Set([...more.map(([name]) => name), role.coder, role.time, role.note]);
  const stays = s.columns.map((name, i) => [name, i]).filter(([name]) => !names.has(name));
  return writeTable([...stays.map(([name]) => name), ...more.map(([name]) => name)],
    s.rows.map((row, i) => [...stays.map(([, place]) => row[place]), ...more.map(([, value]) => value(i) || "")]));
}
function download(text, type, name) {
  const link = make("a", "");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
at("save").addEventListener("click", () => {
  download(savedTable(), "text/csv", `${s.name.replace(/\.csv$/i, "")}.${s.role.file}.csv`);
  s.unsaved = false;
});
at("studio").addEventListener("click", () => {
  const cases = s.rows.map((row, i) => ({
    row: i + 1, text: s.cell(row, s.column), score: s.marks[i].score, decided: s.decided[i],
    predicted: s.cell(row, "code"),
  }));
  download(JSON.stringify(labelStudio(cases, s.cell(s.rows[0], "model")), null, 1), "application/json", s.name.replace(/\.csv$/i, "") + ".labelstudio.json");
});
addEventListener("beforeunload", (event) => { if (s && s.unsaved) event.preventDefault(); });

// ---- keys
at("help").addEventListener("click", () => at("keys").showModal());
at("close").addEventListener("click", () => at("keys").close());
document.addEventListener("keydown", (event) => {
  if (!s || at("keys").open || event.ctrlKey || event.metaKey || event.altKey || !at("single").checked) return;
  if (event.target.closest("input:not([type=checkbox]), select, textarea")) return;
  const act = {
    j: () => go(s.position + 1), k: () => go(s.position - 1), u: undo, "?": () => at("keys").showModal(),
    n: () => go(s.view.findIndex((row, place) => place > s.position && !isDone(row))),
    "/": () => at("search") && at("search").focus(),
    m: () => at("note") && at("note").focus(),
    "[": () => preview(Math.max(0, s.preview - 1)),
    "]": () => preview(Math.min(document.querySelectorAll("ol.candidates li").length - 1, s.preview + 1)),
  }[event.key];
  const chosen = /^[1-9]$/.test(event.key) && document.querySelectorAll("ol.candidates li")[event.key - 1];
  if (!act && !chosen) return;
  event.preventDefault();
  if (act) act();
  else decide(chosen.querySelector("b").textContent);
});
