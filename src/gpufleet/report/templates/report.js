"use strict";
// Draws the grid and the hosts' details from the document in #data, which page.py describes.
// Texts are inserted as text nodes only, so none of them can become markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (selector, within = document) => within.querySelector(selector);
const symbols = { P: "✓", F: "✗", H: "∞", U: "⊘", "?": "?", "-": "–" };
const titles = { P: "healthy", F: "failed", H: "hung", U: "unreachable",
  "?": "inconclusive", "-": "not declared" };
const ownName = "\ue000", atOnce = 50, slow = 0.9;
const styleOf = (letter) => (data.letters[letter] || "none").toLowerCase();
const bad = (letter) => "FHU?".includes(letter);
const text = (number, host) => data.texts[number].replaceAll(ownName, () => host.name);
data.hosts.forEach((host, index) => { host.id = "h" + (index + 1); });

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS($("svg").namespaceURI, tag), attributes, children);

// --- Past nights and speeds ----------------------------------------------------------------------

function nightsOf(host) {
  if (!host.nights) return null;
  const letters = [...host.nights], healthy = letters.filter((letter) => letter === "P").length;
  const step = 66 / letters.length, paths = {};
  letters.forEach((letter, night) => {
    if (letter === ".") return;
    const height = letter === "P" ? 8 : 16;
    paths[letter] = (paths[letter] || "")
      + `M${(night * step).toFixed(1)} ${16 - height}h${Math.max(1, step - 0.7).toFixed(1)}v${height}`
      + `h-${Math.max(1, step - 0.7).toFixed(1)}z`;
  });
  const label = `healthy on ${healthy} of ${letters.length} nights`;
  return shape("svg", { class: "nights", width: 66, height: 16, role: "img", "aria-label": label },
    shape("title", {}, label),
    ...Object.entries(paths).map(([letter, d]) => shape("path", { class: styleOf(letter), d })));
}

function rates(host) {
  if (!host.rates) {
    host.rates = (host.series || []).map(([what, which, least, most, median, last, steps]) => ({
      what: text(what, host), which: text(which, host), median, last,
      values: [...steps].map((step) => step === "." ? null
        : least + (most - least) * data.steps.indexOf(step) / (data.steps.length - 1)),
    }));
  }
  return host.rates;
}

// For each night the lowest ratio of a GPU to its own median: 1 is unchanged.
function speedOf(host) {
  const all = rates(host);
  if (!all.length) return null;
  return all[0].values.map((_, night) => {
    const ratios = all.filter((rate) => rate.values[night] !== null && rate.median)
      .map((rate) => rate.values[night] / rate.median);
    return ratios.length ? Math.min(...ratios) : null;
  });
}

// A line with gaps for nights without a value.
function line(values, x, y) {
  let d = "", gap = true;
  values.forEach((value, night) => {
    if (value !== null) {
      d += `${gap ? "M" : "L"}${x(night).toFixed(1)} ${y(value).toFixed(1)}`;
      // A single night between two gaps is a dot.
      if (gap && (values[night + 1] ?? null) === null) d += "h1";
    }
    gap = value === null;
  });
  return d;
}

const percent = (ratio) => `${Math.round(ratio * 100)} %`;

function sparkOf(host) {
  const speed = speedOf(host);
  if (!speed || speed.length < 2) return [];
  const known = speed.filter((value) => value !== null), last = speed.at(-1);
  const low = Math.min(0.9, ...known), high = Math.max(1.05, ...known);
  const d = line(speed, (night) => 1 + night * 46 / (speed.length - 1),
    (value) => 15 - 14 * (value - low) / (high - low));
  const label = last === null ? "–" : percent(last);
  return [el("span", last !== null && last < slow ? { class: "low" } : {}, label), " ",
    shape("svg", { class: "spark", width: 48, height: 16, "aria-hidden": "true" },
      shape("path", { class: "line", d }))];
}

function ticks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found.map((at) => [at, at.toFixed(Math.max(0, -Math.floor(Math.log10(step))))]);
}

function chart(title, found) {
  const width = Math.max(260, Math.min(600, document.documentElement.clientWidth - 70));
  const height = 150, left = 46, right = 8, top = 8, bottom = 22;
  const all = found.flatMap((rate) => rate.values).filter((value) => value !== null);
  let low = Math.min(...all), high = Math.max(...all);
  // The axis spans at least a tenth, so that noise does not look like a drop.
  const least = high * 0.1;
  if (high - low < least) { const add = (least - high + low) / 2; low -= add; high += add; }
  const nights = found[0].values.length;
  const x = (night) => left + (width - left - right) * (nights > 1 ? night / (nights - 1) : 0.5);
  const y = (value) => top + (height - top - bottom) * (high - value) / (high - low || 1);
  const days = data.nights.map((night) => night.slice(5, 10));
  const label = `${title}: matrix products in TFLOP/s over ${nights} nights, between `
    + `${Math.min(...all).toFixed(1)} and ${Math.max(...all).toFixed(1)}. The table has each GPU.`;
  const drawing = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": label },
    ...ticks(low, high).flatMap(([at, label]) => [
      shape("path", { class: "rule", d: `M${left} ${y(at).toFixed(1)}H${width - right}` }),
      shape("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, label)]),
    shape("text", { x: left, y: height - 6 }, days[0]),
    shape("text", { x: width - right, y: height - 6, "text-anchor": "end" }, days.at(-1)),
    ...found.map((rate, place) => shape("path",
      { class: `line c${place % 8}`, d: line(rate.values, x, y) },
      shape("title", {}, rate.which))));
  return el("figure", {}, el("h4", {}, `${title}, TFLOP/s`), drawing,
    el("table", { class: "rates" },
      el("thead", {}, el("tr", {}, ...["GPU", "last", "median", "of median"].map((title) =>
        el("th", { scope: "col" }, title)))),
      el("tbody", {}, ...found.map((rate, place) => {
        const ratio = rate.last === null || !rate.median ? null : rate.last / rate.median;
        return el("tr", {},
          el("th", { scope: "row" }, shape("svg", { width: 16, height: 10, "aria-hidden": "true" },
            shape("path", { class: `line c${place % 8}`, d: "M0 5h14" })), rate.which),
          el("td", {}, rate.last === null ? "–" : String(rate.last)),
          el("td", {}, String(rate.median)),
          el("td", ratio !== null && ratio < slow ? { class: "low" } : {},
            ratio === null ? "–" : percent(ratio)));
      }))));
}

function charts(host) {
  const by = new Map();
  rates(host).forEach((rate) => by.set(rate.what, [...(by.get(rate.what) || []), rate]));
  if (!host.series) {
    return el("p", { class: "quiet" }, "The history is too long for this page: ",
      el("code", {}, `./gpufleet history --host ${host.name}`));
  }
  if (!by.size || data.nights.length < 2) return null;
  return el("div", { class: "charts" }, ...[...by].map(([title, found]) => chart(title, found)));
}

// --- Ports and NVLinks -----------------------------------------------------------------------------

const listOf = (title, heads, rows) => rows.length ? el("div", {}, el("h4", {}, title),
  el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title },
    el("table", { class: "rates ports" },
      el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, ...rows.map(([first, ...cells]) => el("tr", {},
        el("th", { scope: "row" }, first), ...cells.map((cell) => el("td", {}, cell)))))))) : null;

function fabricOf(host) {
  if (host.fabric === null) {
    return [el("p", { class: "quiet" }, "The ports and NVLinks have no room in this page: see ",
      el("code", {}, "report.json"), " beside it.")];
  }
  const [ports, links] = data.fabrics[host.fabric].map((rows) => rows.map((place) => {
    const [letter, ...texts] = data.rows[place];
    return [letter, ...texts.map((number) => text(number, host))];
  }));
  return [
    listOf("Network ports", ["Port", "Role", "Link", "State", "Rate", "Firmware", "Errors"],
      ports.map(([letter, names, role, because, layer, state, rate, firmware, errors]) => [names,
        el("div", {}, role, el("div", { class: "quiet" }, because)), layer,
        el("span", { class: bad(letter) ? "low" : "" },
          `${letter === "-" ? "" : symbols[letter] + " "}${state}`),
        rate, firmware, errors])),
    listOf("NVLinks", ["GPU", "Active", "NVLink", "Errors"],
      links.map(([, gpus, active, version, errors]) => [gpus, active, version, errors]))];
}

// --- One host --------------------------------------------------------------------------------------

function evidence(number, host) {
  return number < 0 ? "Too long for this page: see report.json beside it." : text(number, host);
}

// `under` are the checks that this one explains.
function checkOf(host, place, letter, wrong, seen, skipped, under) {
  const [id, statement] = data.checks[place], verdict = data.letters[letter], more = [];
  if (wrong) {
    const [, cause, remedy, proof, silenced] = wrong;
    more.push(el("dl", {}, el("dt", {}, "Cause"), el("dd", { class: "cause" }, text(cause, host)),
      el("dt", {}, "Remedy"), el("dd", {}, el("code", {}, text(remedy, host))),
      ...(proof ? [el("dt", {}, "Evidence"), el("dd", {}, el("pre", {}, evidence(proof, host)))]
        : []),
      ...(silenced ? [el("dt", {}, "Silenced"), el("dd", {}, text(silenced, host))] : [])),
    under.length ? el("details", { class: "folds" }, el("summary", {},
      `+${under.length} consequence${under.length === 1 ? "" : "s"} of it`), ...under) : null);
  } else if (skipped) {
    more.push(el("p", { class: "quiet" }, "Not declared: ", el("code", {}, text(skipped, host))));
  }
  const title = [el("span", { class: "id" }, id), statement];
  return el("article", { class: `check ${styleOf(letter)}${wrong ? " loud" : ""}`,
    id: `${host.id}-${id}` },
  el("div", { class: "mark", title: verdict }, el("span", {}, verdict), symbols[letter]),
  seen ? el("details", {}, el("summary", {}, ...title), el("pre", {}, evidence(seen, host)))
    : el("div", {}, ...title, ...more));
}

function insideOf(host) {
  const wrong = new Map(host.wrong.map((row) => [row[0], row]));
  const seen = new Map(data.seen[host.seen]), excused = new Map(data.excuses[host.excused]);
  const places = [...host.checks].map((_, place) => place).filter((place) =>
    host.checks[place] !== ".");
  // Failures first; otherwise in the usual order. What a failure explains is folded under it.
  places.sort((a, b) => bad(host.checks[b]) - bad(host.checks[a]) || a - b);
  const folded = new Map(host.folded);
  const show = (place) => checkOf(host, place, host.checks[place], wrong.get(place),
    seen.get(place), excused.get(place),
    places.filter((other) => folded.get(other) === place).map(show));
  return el("div", { class: "checks" },
    host.about ? el("p", { class: "quiet" }, text(host.about, host)) : null,
    host.changed.length
      ? el("div", {}, el("h4", {}, "Changed since the previous night"), el("ul", { class: "plain" },
        ...host.changed.map((change) => el("li", {}, text(change, host))))) : null,
    charts(host), ...fabricOf(host),
    ...places.filter((place) => !folded.has(place)).map(show));
}

function partOf(host) {
  if (host.part) return host.part;
  const count = {};
  [...host.checks].forEach((letter) => { count[letter] = (count[letter] || 0) + 1; });
  const counts = Object.keys(data.letters).filter((letter) => count[letter])
    .map((letter) => `${count[letter]} ${data.letters[letter]}`).join(", ");
  host.part = el("details", { class: `host card ${styleOf(host.verdict)}`, id: host.id },
    el("summary", {}, el("h3", {}, host.name),
      el("span", { class: "badge" }, `${symbols[host.verdict]} ${titles[host.verdict]}`),
      el("span", { class: "quiet" }, counts), nightsOf(host)));
  host.part.addEventListener("toggle", () => open(host));
  return host.part;
}

// A host's checks are built when its details are opened.
function open(host) {
  const part = partOf(host);
  if (part.open && !$(".checks", part)) part.append(insideOf(host));
  return part;
}

// --- All hosts -------------------------------------------------------------------------------------

const wanted = { choice: "", find: "", narrow: false, most: atOnce };

function haystack(host) {
  host.haystack ??= [host.name, text(host.about, host),
    ...host.changed.map((change) => text(change, host)), ...host.wrong.flatMap(([place, cause]) =>
    [data.checks[place][0], text(cause, host)])].join("\n").toLowerCase();
  return host.haystack;
}

// The choice of a button: all hosts, those with a verdict, those that changed.
const chosen = (host, choice) => !choice || host.verdict === choice
  || (choice === "changed" && host.changed.length > 0);
const matches = (host) => chosen(host, wanted.choice)
  && wanted.find.toLowerCase().split(/\s+/).every((word) => haystack(host).includes(word));

function rowOf(host, columns, past, speed) {
  const cells = [], folded = new Map(host.folded);
  columns.forEach((place, at) => {
    const letter = host.checks[place], verdict = data.letters[letter];
    if (letter === ".") { cells.push(el("td")); return; }
    const id = data.checks[place][0], cause = folded.get(place);
    const what = `${id}: ${verdict}${cause === undefined ? "" : `, explained by ${data.checks[cause][0]}`}`;
    const label = `${host.name}, ${what}`;
    cells.push(el("td", { class: `cell ${styleOf(letter)}${cause === undefined ? "" : " folded"}${apart(columns, at)}`,
      title: what,
      "data-aim": `${host.id}-${id}` }, bad(letter)
      ? el("a", { href: `#${host.id}-${id}`, "aria-label": label }, symbols[letter])
      : symbols[letter]));
  });
  if (host.verdict === "U" && columns.length > 1) {
    // The cause replaces the empty cells.
    const first = cells.findIndex((cell) => !cell.className);
    if (first >= 0) {
      cells.splice(first, cells.length, el("td", { class: "gone", colspan: cells.length - first },
        text(host.wrong[0][1], host)));
    }
  }
  return el("tr", {},
    el("th", { scope: "row", title: host.name }, el("a", { href: `#${host.id}` }, host.name)),
    past ? el("td", { class: "past" }, ...[nightsOf(host)]) : null,
    speed ? el("td", { class: "speed" }, ...sparkOf(host)) : null, ...cells);
}

// A gap separates the areas of checks.
const areaOf = (place) => data.checks[place][0].split(".")[0];
const apart = (columns, at) => at > 0 && areaOf(columns[at - 1]) !== areaOf(columns[at])
  ? " first" : "";

function headOf(columns, past, speed) {
  const head = (title, more) => el("th", { scope: "col", ...more }, title);
  return el("thead", {}, el("tr", {}, head("Host"),
    past ? head(`${data.nights.length} nights`, { class: "past" }) : null,
    speed ? head("Speed", { class: "speed", title: "The slowest GPU tonight, relative to its own median" }) : null,
    ...columns.map((place, at) => el("th", { scope: "col",
      class: `check-name${apart(columns, at)}`, title: data.checks[place].join(": ") },
    el("span", {}, data.checks[place][0])))));
}

function show() {
  const all = data.order.map((place) => data.hosts[place]), found = all.filter(matches);
  const rows = found.slice(0, wanted.most);
  const somewhere = data.checks.map((_, place) => place);
  const unwell = somewhere.filter((place) => all.some((host) => bad(host.checks[place])));
  const columns = wanted.narrow && unwell.length ? unwell : somewhere;
  const past = all.some((host) => host.nights), speed = all.some((host) => host.series?.length);
  $(".grid").replaceChildren(headOf(columns, past, speed),
    el("tbody", {}, ...rows.map((host) => rowOf(host, columns, past, speed))));
  const known = data.checks.some(([id]) => id.includes(wanted.find.toLowerCase()));
  $("#showing").textContent = found.length
    ? `${rows.length} of ${all.length} hosts, the worst first.`
    : wanted.find && known && !wanted.choice
      ? "No host: this check passes wherever it was judged." : "No matching host.";
  $("#parts").replaceChildren(...rows.map(partOf));
  const more = $(".more-hosts");
  more.hidden = rows.length === found.length;
  more.replaceChildren(...[Math.min(100, found.length - rows.length), found.length - rows.length]
    .filter((count, place, counts) => counts.indexOf(count) === place).map((count) => {
      const button = el("button", { type: "button" }, `Show ${count} more`);
      button.addEventListener("click", () => { wanted.most += count; show(); });
      return button;
    }));
}

function chips() {
  for (const choice of ["", ...Object.keys(data.letters), "changed"]) {
    const count = data.hosts.filter((host) => chosen(host, choice)).length;
    if (count) {
      const button = el("button", { type: "button", "aria-pressed": !choice }, !choice
        ? `All ${count}` : [symbols[choice] || "↕", count, titles[choice] || choice].join(" "));
      button.choice = choice;
      button.addEventListener("click", () => { ask({ choice }); });
      $(".chips").append(button);
    }
  }
}

function ask(more) {
  Object.assign(wanted, more, { most: atOnce });
  $(".chips").childNodes.forEach((button) =>
    button.setAttribute("aria-pressed", button.choice === wanted.choice));
  show();
}

// A link to a host or to one of its checks opens the host, also one that is filtered out.
function reveal() {
  const id = decodeURIComponent(location.hash.slice(1)), [name] = id.split("-", 1);
  const host = /^h\d+$/.test(name) && data.hosts[name.slice(1) - 1];
  if (!host) return;
  const part = partOf(host);
  if (!part.isConnected) $("#parts").prepend(part);
  part.open = true;
  open(host);
  document.querySelectorAll(".aimed").forEach((check) => check.classList.remove("aimed"));
  const aim = document.getElementById(id) || part;
  for (let at = aim; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (aim !== part) aim.classList.add("aimed");
  aim.scrollIntoView();
  $("summary", part).focus({ preventScroll: true });
}

$(".scripted").hidden = false;
wanted.narrow = $("#narrow").checked = matchMedia("(max-width: 40rem)").matches;
chips();
show();
if (data.hosts.length === 1) partOf(data.hosts[0]).open = true;
$(".tools").addEventListener("submit", (event) => event.preventDefault());
$("#find").addEventListener("input", (event) => ask({ find: event.target.value.trim() }));
$("#narrow").addEventListener("change", (event) => ask({ narrow: event.target.checked }));
$(".grid").addEventListener("click", (event) => {
  const cell = event.target.closest("[data-aim]");
  if (cell) location.hash = cell.dataset.aim;
});
addEventListener("hashchange", reveal);
// Printing includes the details of unhealthy hosts; see also the style. A single host is open anyway.
addEventListener("beforeprint", () => data.hosts.forEach((host) => {
  if (host.part?.isConnected && host.verdict !== "P") {
    host.part.open = true;
    open(host);
  }
}));
reveal();
