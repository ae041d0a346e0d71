"use strict";
// Helpers of both pages for the document and for responses.
const at = (id) => document.getElementById(id);
function make(tag, text, name, attributes) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  return made;
}
function headers(type) {
  const all = { "Content-Type": type };
  if (at("key").value) all["X-API-Key"] = at("key").value;
  return all;
}
async function refusal(response) {
  if (response.status === 401) return "Enter your API key.";
  try { return (await response.json()).detail; } catch { return "the service answered " + response.status; }
}
const warned = (lines) => lines.map((line) => make("p", `Warning: ${line}.`, "warning"));
function warnedBy(response) {
  const notes = response.headers.get("X-Warnings");
  return warned(notes ? [notes] : []);
}
const percent = (share) => (100 * share).toFixed(1) + "%";
function offerColumns(names) {
  at("column").replaceChildren(...names.map((name) => make("option", name)));
  at("column").selectedIndex = Math.max(names.findIndex((name) => /narrative|text|description/i.test(name)), 0);
}

// Tables, agreement and export: functions of their arguments only.
const MOST = { bytes: 32 << 20, rows: 5000, columns: 200 };

// Parses a CSV into header and rows; throws if the file is too long, too wide or malformed.
function readTable(text) {
  text = text.replace(/^\uFEFF/, "");
  const head = text.slice(0, 65536).split(/\r?\n/, 1)[0];
  const sign = [",", ";", "\t"].sort((a, b) => head.split(b).length - head.split(a).length)[0];
  const records = [];
  let cells = [], at = 0, ended = true;
  const take = (cell) => {
    if (cells.push(cell) > MOST.columns) throw new Error(`The file has over ${MOST.columns} columns. Open a table of narratives.`);
  };
  const close = () => {
    if (cells.length === 1 && cells[0] === "" && !records.length) throw new Error("The first line is empty. It must name the columns.");
    if (records.length && cells.length === 1 && cells[0] === "" && records[0].length > 1) { cells = []; return; }
    if (records.length && cells.length !== records[0].length) {
      throw new Error(`Row ${records.length}: ${cells.length} fields, but the header has ${records[0].length}. Correct the file.`);
    }
    if (records.push(cells) > MOST.rows + 1) throw new Error(`The file has over ${MOST.rows.toLocaleString("en")} rows. Split it.`);
    cells = [];
  };
  while (at < text.length) {
    ended = false;
    let cell;
    if (text[at] === '"') {
      cell = "";
      for (;;) {
        const end = text.indexOf('"', at + 1);
        if (end < 0) throw new Error(`Row ${records.length}: a quote has no end. Correct the file.`);
        cell += text.slice(at + 1, end);
        at = end + 1;
        if (text[at] !== '"') break;
        cell += '"';
      }
      if (at < text.length && text[at] !== sign && text[at] !== "\n" && text[at] !== "\r") {
        throw new Error(`Row ${records.length}: something follows a quote. Correct the file.`);
      }
    } else {
      const start = at;
      while (at < text.length && text[at] !== sign && text[at] !== "\n" && text[at] !== "\r") at += 1;
      cell = text.slice(start, at);
    }
    take(cell);
    if (text[at] === sign) {
      at += 1;
      if (at === text.length) take("");
      continue;
    }
    if (text[at] === "\r" && text[at + 1] === "\n") at += 1;
    at += 1;
    close();
    ended = true;
  }
  if (!ended && cells.length) close();
  if (!records.length) throw new Error("The file is empty.");
  const [columns, ...rows] = records;
  if (new Set(columns).size < columns.length) throw new Error("Two columns have the same name. Rename one.");
  return { columns, rows };
}

// The rule of storage/tables/formulas.py: no spreadsheet program may treat a cell as a formula.
function escapeFormula(text) {
  const start = text.replace(/^[ \n]+/, "")[0];
  const number = /^[+-]?\d+([.,]\d+)*([eE][+-]?\d+)?%?$/.test(text.replace(/^[ \n]+|[ \n]+$/g, ""));
  return start && "=+-@\t\r＝＋－＠".includes(start) && !number ? "'" + text : text;
}
function cellOf(text) {
  const safe = escapeFormula(text);
  return /[",\r\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
}
function writeTable(columns, rows) {
  return [columns, ...rows].map((row) => row.map(cellOf).join(",") + "\n").join("");
}

// Share of equal pairs and Cohen's kappa; pairs with a blank side are left out.
function agreement(pairs) {
  const both = pairs.filter(([a, b]) => a && b), first = new Map(), second = new Map();
  if (!both.length) return { n: 0, share: null, kappa: null };
  let same = 0;
  for (const [a, b] of both) {
    same += a === b;
    first.set(a, (first.get(a) || 0) + 1);
    second.set(b, (second.get(b) || 0) + 1);
  }
  const n = both.length, share = same / n;
  let chance = 0;
  for (const [code, count] of first) chance += (count / n) * ((second.get(code) || 0) / n);
  return { n, share, kappa: chance < 1 ? (share - chance) / (1 - chance) : null };
}

// The candidates and marks that coding wrote for a row.
function reader(columns) {
  const place = new Map(columns.map((name, i) => [name, i]));
  return (row, name) => (place.has(name) ? row[place.get(name)] : "");
}
function candidatesOf(cell, row) {
  const out = [];
  for (let k = 1; k <= 20; k += 1) {
    const end = k === 1 ? "" : `_${k}`, code = cell(row, "code" + end), value = cell(row, "score" + end);
    if (code) out.push({ code, score: value === "" ? null : Number(value) });
  }
  for (const code of cell(row, "set").split(";").map((one) => one.trim())) {
    if (code && !out.some((one) => one.code === code)) out.push({ code, score: null });
  }
  return out.slice(0, 9);
}
function marksOf(cell, row, sensitive, threshold) {
  const listed = candidatesOf(cell, row), score = listed.length && listed[0].score !== null ? listed[0].score : 0;
  return {
    score, size: Number(cell(row, "set_size")) || 0, sensitive: listed.some((one) => sensitive.includes(one.code)),
    low: cell(row, "needs_review") === "true" || (threshold !== null && score < threshold), blank: !listed.length,
  };
}
const ORDERS = {
  looks: (m) => [-m.sensitive - m.low - (m.size > 1), m.score],
  score: (m) => [-m.low, m.score],
  size: (m) => [-m.size, m.score],
  sensitive: (m) => [-m.sensitive, m.score],
  file: () => [0, 0],
};
function orderBy(name, marks) {
  const keys = marks.map(ORDERS[name]);
  return marks.map((_, i) => i).sort((a, b) => keys[a][0] - keys[b][0] || keys[a][1] - keys[b][1] || a - b);
}

// Label Studio's tasks: the model's answers are predictions, decisions are annotations.
function labelStudio(cases, model) {
  const result = (code) => (code ? [{ from_name: "code", to_name: "text", type: "choices", value: { choices: [code] } }] : []);
  return cases.map((one) => {
    const task = { data: { text: one.text, row: one.row }, predictions: [{ model_version: model, score: one.score, result: result(one.predicted) }] };
    if (one.decided) task.annotations = [{ result: result(one.decided) }];
    return task;
  });
}

// Whether two words are forms of the same word: a common prefix of at least four letters, and endings of at most three.
function sameStem(one, other) {
  let same = 0;
  while (same < one.length && one[same] === other[same]) same += 1;
  return same >= 4 && one.length - same <= 3 && other.length - same <= 3;
}
// Codes with every word, or another form of it, in the code, title or description. Codes that begin with the first word
// come first, then codes with all words in the title, then other forms, then descriptions.
function searchCodes(listed, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const has = (text, word) => text.includes(word);
  const stems = (text, word) => has(text, word) || text.split(/[^\p{L}\p{N}]+/u).some((own) => sameStem(own, word));
  const rank = (one) => {
    const code = one.code.toLowerCase(), title = `${code} ${one.title}`.toLowerCase();
    if (words.every((word) => has(title, word))) return code.startsWith(words[0]) ? 0 : one.title.toLowerCase().startsWith(words[0]) ? 1 : 2;
    if (words.every((word) => stems(title, word))) return 3;
    const whole = `${title} ${one.description || ""}`.toLowerCase();
    return words.every((word) => stems(whole, word)) ? 4 : 5;
  };
  return listed.map((one) => [rank(one), one]).filter(([level]) => level < 5)
    .sort((a, b) => a[0] - b[0]).slice(0, 20).map(([, one]) => one);
}
// The levels of a classification: { name, codes, groups } each.
function treeOf(listed) {
  const top = { name: "", codes: [], groups: new Map() };
  for (const one of listed) {
    let place = top;
    for (const name of one.above || []) {
      if (!place.groups.has(name)) place.groups.set(name, { name, codes: [], groups: new Map() });
      place = place.groups.get(name);
    }
    place.codes.push(one);
  }
  return top;
}
const size = (group) => group.codes.length + [...group.groups.values()].reduce((sum, one) => sum + size(one), 0);
