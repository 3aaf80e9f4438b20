// The page of `regroup ui`. Whatever comes from a job is written by users: it becomes text, never
// HTML. Nothing here changes a job.
"use strict";

const POLL_MILLISECONDS = 2000;
const SLOW_POLL_MILLISECONDS = 15000; // checkpoints: to list them starts a process
const GOOD = ["Running", "Succeeded"];
const BAD = ["Failed"];

const byId = (id) => document.getElementById(id);
const answers = new Map(); // address -> its last answer and ETag
let view = null; // what the address shows: {job} or {}
let start = 0; // of the page of the list
let chart = null;
let chartData = null;
let round = 0; // raised when another view begins: late answers of the former one do not count
let timer = 0;
let lastSlow = 0;
let mayReadSeries = false; // whether the job rests, and its volume may have its loss
let keptNote = ""; // how far the reading of what a job has left on its volume is

// --- what is shown of a value ------------------------------------------------------------------

const NOTHING = "–";
const shown = (value) => (value === null || value === undefined || value === "" ? NOTHING : value);
const percent = (value) => (value ? `${Math.round(100 * value)} %` : NOTHING);
function loss(value) {
  if (typeof value !== "number") return NOTHING;
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(3) : value.toFixed(4);
}
const steps = (job) => (job.totalSteps ? `${job.step} / ${job.totalSteps}` : `${job.step}`);
const clock = (seconds) =>
  seconds === null ? NOTHING : new Date(1000 * seconds).toLocaleString(undefined, { hour12: false });

function duration(seconds) {
  if (typeof seconds !== "number" || seconds < 0) return NOTHING;
  if (seconds < 10 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

const now = () => Date.now() / 1000;
const since = (seconds) => (seconds === null ? NOTHING : duration(Math.max(0, Math.round(now() - seconds))));

function size(bytes) {
  if (typeof bytes !== "number") return NOTHING;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit ? bytes.toPrecision(3) : bytes} ${units[unit]}`;
}

// --- elements ----------------------------------------------------------------------------------

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function cell(text, className) {
  return element("td", shown(text), className);
}

function row(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

function fill(id, rows, empty) {
  const body = byId(id);
  if (rows.length === 0) {
    const columns = body.parentElement.querySelectorAll("th").length;
    const none = element("td", empty, "empty");
    none.colSpan = columns;
    rows = [row(none)];
  }
  body.replaceChildren(...rows);
}

function setText(id, text) {
  const target = byId(id);
  if (target.textContent !== text) target.textContent = text; // else a screen reader repeats it
}

function phase(text) {
  const kind = GOOD.includes(text) ? "good" : BAD.includes(text) ? "bad" : "warn";
  return element("span", text, `phase ${kind}`);
}

// --- answers -----------------------------------------------------------------------------------

async function get(address) {
  const before = answers.get(address);
  const headers = before ? { "If-None-Match": before.tag } : {};
  const response = await fetch(address, { headers, cache: "no-store" });
  if (response.status === 304) return { value: before.value, changed: false };
  if (!response.ok) throw new Error((await response.text()).slice(0, 2000));
  const value = await response.json();
  answers.delete(address);
  answers.set(address, { tag: response.headers.get("ETag"), value });
  if (answers.size > 12) answers.delete(answers.keys().next().value);
  return { value, changed: true };
}

const api = (name, parameters) => `/api/${name}?${new URLSearchParams(parameters)}`;

function setConnection(problem) {
  setText("connection", problem || "live");
  byId("connection").className = problem ? "bad" : "";
}

// --- the list ----------------------------------------------------------------------------------

async function pollList(mine) {
  const address = api("jobs", { start, text: byId("filter").value });
  const { value, changed } = await get(address);
  if (mine !== round) return;
  if (start && start >= value.total) {
    start = 0;
    return schedule(0);
  }
  setText("source", value.title);
  const last = start + value.jobs.length;
  const none = value.total === 1 ? "1 job" : `${value.total} jobs`;
  setText("count", none);
  setText("page-number", value.total ? `${start + 1} to ${last} of ${value.total}` : "");
  byId("previous").disabled = start === 0;
  byId("next").disabled = last >= value.total;
  byId("next").dataset.start = start + value.pageSize;
  byId("previous").dataset.start = Math.max(0, start - value.pageSize);
  updateRows(value.jobs, changed || byId("jobs").dataset.shown !== address);
  byId("jobs").dataset.shown = address;
}

// Rows that stay keep what a reader has selected in them.
function updateRows(jobs, isNew) {
  if (!isNew) {
    jobs.forEach((job, n) => {
      byId("jobs").rows[n].lastElementChild.textContent = since(job.created);
    });
    return;
  }
  const focused = document.activeElement && document.activeElement.dataset.job;
  fill("jobs", jobs.map(jobRow), "There is no such job.");
  if (focused === undefined) return;
  for (const link of byId("jobs").querySelectorAll("a")) {
    if (link.dataset.job === focused) link.focus({ preventScroll: true });
  }
}

function jobRow(job) {
  const name = document.createElement("th");
  name.scope = "row";
  const link = element("a", job.namespace ? `${job.namespace}/${job.name}` : job.id);
  link.href = `#job=${encodeURIComponent(job.id)}`;
  link.dataset.job = job.id;
  name.append(link);
  const state = document.createElement("td");
  state.append(phase(job.phase));
  return row(
    name, state,
    cell(`${job.workers} / ${job.wantedWorkers}`, "number"), cell(steps(job), "number"),
    cell(loss(job.loss), "number"), cell(job.checkpointStep, "number"),
    cell(job.restarts, "number"), cell(percent(job.goodput), "number"),
    cell(since(job.created), "number"),
  );
}

// --- one job -----------------------------------------------------------------------------------

async function pollJob(mine) {
  const { value: job, changed } = await get(api("job", { id: view.job }));
  if (mine !== round) return;
  showFacts(job);
  showTimeline(job.timeline);
  mayReadSeries = job.mayHaveKeptSeries;
  if (changed || !byId("job-title").dataset.shown) showJob(job);
  await Promise.all([part(mine, "chart-note", pollSeries), part(mine, "logs-note", pollLogs)]);
  if (Date.now() - lastSlow > SLOW_POLL_MILLISECONDS) {
    lastSlow = Date.now();
    void part(mine, "checkpoints-note", pollCheckpoints); // the rest does not wait for it
  }
}

// A part that cannot be read says why, in its place.
async function part(mine, note, poll) {
  try {
    await poll(mine);
  } catch (error) {
    if (error instanceof TypeError) throw error; // the server is away
    if (mine === round) setText(note, error.message);
  }
}

function notes(...texts) {
  return texts.filter((text) => text).join("; ");
}

function showJob(job) {
  const title = byId("job-title");
  const name = job.namespace ? `${job.namespace}/${job.name}` : job.name;
  if (title.dataset.shown !== `${name} ${job.phase}`) {
    title.replaceChildren(document.createTextNode(name), phase(job.phase));
    title.dataset.shown = `${name} ${job.phase}`;
    document.title = `${name}: ${job.phase}`;
  }
  setText("job-message", job.message);
  byId("problems").replaceChildren(...job.problems.map((text) => element("li", text)));
  byId("problems").hidden = job.problems.length === 0;
  showRecoveries(job.timeline);
  showWorkers(job);
  showEvents(job.events);
}

function showFacts(job) {
  const rates = [
    [job.tokensPerSecond, "tokens/s"], [job.samplesPerSecond, "samples/s"], [job.stepsPerSecond, "steps/s"],
  ];
  const [figure, unit] = rates.find(([value]) => value) || [null, ""];
  const rate = figure === null ? NOTHING
    : `${unit === "steps/s" ? figure.toPrecision(3) : Math.round(figure)} ${unit}`;
  const facts = {
    Step: steps(job), Loss: loss(job.loss), Rate: rate,
    Left: job.ended ? NOTHING : duration(job.remainingSeconds),
    Workers: `${job.workers} of ${job.wantedWorkers}`, Ranks: job.worldSize,
    Generation: shown(job.generation), Restarts: job.restarts, "Lost steps": job.lostSteps,
    Goodput: percent(job.goodput),
    Checkpoint: job.checkpointStep === null
      ? "none" : `step ${job.checkpointStep}, ${since(job.checkpointTime)} ago`,
    Phase: `${job.phase} for ${since(job.phaseTime)}`,
  };
  byId("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => {
    const pair = document.createElement("div");
    pair.append(element("dt", name), element("dd", `${value}`));
    return pair;
  }));
}

const SVG = "http://www.w3.org/2000/svg";

function showTimeline(line) {
  const from = line.start === null ? now() : line.start;
  const to = line.end === null ? now() : line.end;
  const span = Math.max(to - from, 1e-3);
  const place = (time) => Math.min(1000, Math.max(0, (1000 * (time - from)) / span));
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 1000 34");
  drawing.setAttribute("preserveAspectRatio", "none");
  const bar = (begin, end, kind, title) => {
    const made = document.createElementNS(SVG, "rect");
    made.setAttribute("x", begin);
    made.setAttribute("width", Math.max(2, end - begin)); // a recovery of a second is seen, too
    made.setAttribute("height", 34);
    made.setAttribute("class", kind);
    const words = document.createElementNS(SVG, "title");
    words.textContent = title;
    made.append(words);
    drawing.append(made);
  };
  bar(0, 1000, line.trained ? "trains" : "waits", line.trained ? "trains or starts" : "waits");
  for (const one of line.recoveries) {
    bar(place(one.time), place(one.end), "stopped",
      `generation ${one.generation}: ${one.cause}, down ${duration(one.downSeconds)}`);
  }
  if (line.waitsSince !== null) bar(place(line.waitsSince), 1000, "waits", "waits");
  byId("timeline").replaceChildren(drawing);
  const count = line.recoveries.length;
  byId("timeline").setAttribute("aria-label",
    `${line.isCut ? "The last " : ""}${count} ${count === 1 ? "recovery" : "recoveries"} from `
    + `${clock(from)} to ${line.end === null ? "now" : clock(to)}`
    + `${line.waitsSince === null ? "" : `; it waits since ${clock(line.waitsSince)}`}`);
}

function showRecoveries(line) {
  const rows = [...line.recoveries].reverse().map((one) => row(
    cell(clock(one.time), "time"), cell(one.generation), cell(one.ranks), cell(one.cause),
    cell(duration(one.downSeconds), "number"), cell(one.lostSteps, "number"),
    cell(one.restoredFrom), cell(one.message, "text"),
  ));
  fill("recoveries", rows, "None: its workers have not changed.");
}

function showWorkers(job) {
  fill("workers", job.workerRows.map((one) => row(
    cell(one.worker, "number"), cell(one.ranks), cell(one.state), cell(one.step, "number"),
    cell(one.pod), cell(one.node), cell(one.note, "text"),
  )), "None.");
  const hasSteps = job.workerRows.some((one) => one.step !== null);
  byId("workers").parentElement.classList.toggle("without-steps", !hasSteps);
  setText("workers-note", notes(job.workersLeftOut ? `and ${job.workersLeftOut} more` : "", job.workersNote));
}

function showEvents(events) {
  fill("events", events.map((one) => row(
    cell(clock(one.time), "time"), cell(one.type, one.type === "Warning" ? "warn" : ""),
    cell(one.count > 1 ? `${one.reason} (${one.count} times)` : one.reason),
    cell(one.message, "text"),
  )), "None.");
}

async function pollCheckpoints(mine) {
  const { value, changed } = await get(api("checkpoints", { id: view.job }));
  if (mine !== round) return;
  if (changed || !byId("checkpoints").rows.length) fill("checkpoints", value.checkpoints.map((one) => row(
    cell(one.step, "number"), cell(size(one.sizeBytes), "number"),
    cell(one.resumable ? "yes" : "no"), cell(one.path, "text"),
    cell(one.problem),
  )), "None.");
  setText("checkpoints-note", notes(value.leftOut ? `and ${value.leftOut} older ones` : "", value.note));
}

async function pollLogs(mine) {
  const rank = byId("rank").value.trim();
  const parameters = /^\d+$/.test(rank) ? { id: view.job, rank } : { id: view.job };
  const { value, changed } = await get(api("logs", parameters));
  if (mine !== round) return;
  const pre = byId("logs");
  if (changed || pre.dataset.shown !== rank) {
    pre.textContent = value.lines.length ? value.lines.join("\n") : "No rank has written a line.";
    pre.dataset.shown = rank;
    if (byId("follow").checked) pre.scrollTop = pre.scrollHeight;
  }
  setText("logs-note", value.note);
}

// --- the chart ---------------------------------------------------------------------------------

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

async function pollSeries(mine) {
  const { value, changed } = await get(api("series", { id: view.job }));
  if (mine !== round) return;
  chartData = value;
  describeChart();
  if (changed || !chart) drawChart();
}

function describeChart() {
  const { step, loss: values } = chartData;
  const known = values.filter((value) => value !== null);
  const isMissing = mayReadSeries && !step.length;
  const without = isMissing
    ? "The job rests, and its loss lies on its volume. A pod is started to read it, and deleted."
    : "No loss was reported yet.";
  setText("chart-note", keptNote
    || (known.length ? "Where steps were lost, the line of the steps falls." : without));
  byId("read-series").hidden = !isMissing;
  byId("chart").setAttribute("aria-label", known.length
    ? `Loss over time, from ${loss(known[0])} to ${loss(known[known.length - 1])}, `
      + `up to step ${step[step.length - 1]}`
    : "Loss over time: no loss was reported yet");
}

// Only when it is asked for: it takes a pod with the job's volume.
async function readKeptSeries() {
  const mine = round;
  const show = (note, isReading) => {
    if (mine !== round) return;
    keptNote = note;
    byId("read-series").disabled = isReading;
    describeChart();
  };
  show("A pod is started that reads loss and checkpoints from the job's volume...", true);
  try {
    await get(api("kept-series", { id: view.job }));
    if (mine === round) lastSlow = 0; // there are more checkpoints now
    show("", false);
  } catch (error) {
    show(error.message, false);
  }
  if (mine === round) schedule(0);
}

function drawChart() {
  const data = [chartData.time, chartData.loss, chartData.step];
  const width = byId("chart").clientWidth;
  if (!width || chartData.loss.every((value) => value === null)) removeChart();
  else if (chart) chart.setData(data);
  else chart = new uPlot(chartOptions(width), data, byId("chart"));
}

function chartOptions(width) {
  const axis = { stroke: color("--text"), grid: { stroke: color("--line"), width: 1 },
    ticks: { stroke: color("--line"), width: 1 }, font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif" };
  const whole = (_chart, values) => values.map((value) => (Number.isInteger(value) ? value : ""));
  return {
    width, height: 280, scales: { x: { time: true } },
    series: [
      {},
      { label: "Loss", stroke: color("--accent"), width: 2, spanGaps: false,
        value: (_chart, value) => loss(value) },
      { label: "Step", scale: "step", stroke: color("--warn"), width: 1, dash: [4, 4],
        points: { show: false } },
    ],
    axes: [
      axis,
      { ...axis, label: "Loss", size: 60 },
      { ...axis, label: "Step", scale: "step", side: 1, size: 60, values: whole,
        grid: { show: false } },
    ],
  };
}

function removeChart() {
  if (chart) chart.destroy();
  chart = null;
}

// --- which view, and when it is read again -----------------------------------------------------

function schedule(milliseconds) {
  clearTimeout(timer);
  timer = setTimeout(poll, milliseconds);
}

async function poll() {
  const mine = round;
  if (document.hidden) return; // `visibilitychange` goes on
  try {
    await (view.job === undefined ? pollList(mine) : pollJob(mine));
    if (mine === round) setConnection("");
  } catch (error) {
    const away = error instanceof TypeError;
    if (mine === round) {
      setConnection(away ? "not connected: was the command ended?" : error.message);
    }
  }
  if (mine === round) schedule(POLL_MILLISECONDS);
}

function route() {
  const hash = window.location.hash;
  if (hash === "#content") return;
  let job;
  if (hash.startsWith("#job=")) {
    try {
      job = decodeURIComponent(hash.slice(5));
    } catch {
      job = undefined;
    }
  }
  const first = view === null;
  view = job === undefined ? {} : { job };
  round += 1;
  lastSlow = 0;
  byId("list-view").hidden = job !== undefined;
  byId("job-view").hidden = job === undefined;
  clearJob();
  if (job === undefined) document.title = "Regroup jobs";
  if (!first) (job === undefined ? byId("content") : byId("job-title")).focus();
  schedule(0);
}

function clearJob() {
  removeChart();
  keptNote = "";
  byId("read-series").hidden = true;
  byId("read-series").disabled = false;
  const title = byId("job-title");
  title.textContent = view.job === undefined ? "" : view.job;
  delete title.dataset.shown;
  delete byId("logs").dataset.shown;
  for (const id of ["job-message", "logs", "logs-note", "chart-note", "workers-note",
    "checkpoints-note"]) setText(id, "");
  for (const id of ["problems", "facts", "timeline", "recoveries", "workers", "checkpoints",
    "events"]) byId(id).replaceChildren();
}

function turn(event) {
  start = Number(event.target.dataset.start);
  schedule(0);
}

let resized = 0;
function onResize() {
  clearTimeout(resized);
  resized = setTimeout(() => {
    if (chart) chart.setSize({ width: byId("chart").clientWidth, height: 280 });
  }, 100);
}

byId("filter").addEventListener("input", () => {
  start = 0;
  round += 1; // an answer that comes late is to what was asked before
  schedule(200);
});
byId("rank").addEventListener("input", () => schedule(200));
byId("read-series").addEventListener("click", readKeptSeries);
byId("previous").addEventListener("click", turn);
byId("next").addEventListener("click", turn);
window.addEventListener("hashchange", route);
window.addEventListener("resize", onResize);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) schedule(0);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  removeChart();
  if (chartData && view.job !== undefined) drawChart();
});
route();
