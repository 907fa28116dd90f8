// Draws the run of `live_run.js`, and asks the server that this page came from.
const $ = (id) => document.getElementById(id);
const LANES = 8, LANE = 27, STRIPS = 9, COLOURS = 8;
const run = newRun();
const LONGEST_ANSWER = 1024; // tokens; some models never stop by themselves
let key = "", chosen = null, dirty = true, count = 0, labels = 0; // labels: pixels left of the timeline
let still = null; // what is shown instead of `run` while the picture is frozen
let wanted = 0; // the budget that was set here
let feed = null, tab = null, asked = []; // the open connection; the server's name of this tab; what it has asked

const headers = () => ({ "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}), ...(tab ? { "x-tab": tab } : {}) });
const say = (text) => { $("state").textContent = text; };
const colourOf = (request) => `var(--c${request % COLOURS})`;

// ---- the server

const wantsKey = (reply) => {
    if (reply.status === 401) $("key").hidden = false;
    return reply.status === 401;
};

const problemOf = async (reply) => {
    try { return (await reply.json()).error.message; } catch { return `HTTP ${reply.status}`; }
};

// The data of a stream of server-sent events, one by one. EventSource cannot send a key, and one in an address would be logged.
async function* dataOf(reply) {
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = "";;) {
        const { value, done } = await reader.read();
        if (done) return;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) if (event.startsWith("data: ")) yield event.slice(6);
    }
}

// One connection while the page is seen. A name that the server has ended the feed of is not used again: a copy of
// this tab has it now.
const follow = async () => {
    const mine = feed = new AbortController();
    for (; feed === mine; await new Promise((wake) => setTimeout(wake, 1000))) {
        try {
            const reply = await fetch("events", { headers: headers(), signal: mine.signal });
            if (wantsKey(reply)) { say("This server wants an API key."); return; }
            if (!reply.ok) throw new Error(await problemOf(reply));
            for await (const data of dataOf(reply)) if (feed === mine) heard(JSON.parse(data));
            tab = null;
            say("The server has ended the stream. Trying again…");
        } catch (problem) {
            if (feed === mine) say(`No connection (${problem.message}). Trying again…`);
        }
    }
};

// A page that is not seen needs no feed. It may be about to load again, so its tab is kept where only it finds it; not
// while it is seen, since a copy of the tab would find it, too.
const show = () => {
    const kept = JSON.parse(sessionStorage.getItem("tab") ?? "null");
    sessionStorage.removeItem("tab");
    if (kept && !tab) { ({ tab, asked } = kept); run.demos = kept.demos; }
    showAnswers();
    follow();
};
const hide = () => {
    feed?.abort();
    feed = null;
    if (tab) sessionStorage.setItem("tab", JSON.stringify({ tab, asked, demos: run.demos }));
};

const heard = (message) => {
    if (message.kind === "answer") hear(asked, message);
    else take(run, message);
    if (message.kind === "hello") { chosen = null; greet(message); }
    dirty = true;
};

const greet = (hello) => {
    const slider = $("budget"), place = hello.budgets.indexOf(hello.budget);
    tab = hello.tab;
    lose(asked, hello.answers);
    slider.max = hello.budgets.length - 1;
    slider.value = place < 0 ? slider.max : place;
    slider.disabled = !hello.chunked || !hello.controls;
    sayBudget(hello.budget);
    if (wanted && wanted !== hello.budget) setBudget(wanted); // it was taken back when the page was hidden
    $("long").textContent = `Long prompt (${longPrompt(hello).toLocaleString("en")} tokens)`;
};

const sayBudget = (tokens) => {
    const fixed = run.hello.controls ? "" : " (fixed: start the server with --live-controls)";
    const said = run.hello.chunked ? `${tokens.toLocaleString("en")} tokens${fixed}` : "whole prompts: chunked prefill is off";
    $("budget-said").textContent = said;
    $("budget").setAttribute("aria-valuetext", said);
};

const setBudget = async (tokens) => {
    const reply = await fetch("step_budget", { method: "POST", headers: headers(), body: JSON.stringify({ max_num_batched_tokens: tokens }) });
    if (reply.ok) run.hello.budget = wanted = (await reply.json()).max_num_batched_tokens;
    else say(await problemOf(reply));
    $("budget").value = Math.max(run.hello.budgets.indexOf(run.hello.budget), 0);
    sayBudget(run.hello.budget);
};

// ---- asking

const randomTokens = (count) => Array.from({ length: count }, () => Math.floor(Math.random() * run.hello.vocab_size));

// The answer comes with the feed: the request says whose it is, and its id is the answer's.
const ask = async (title, path, body, inTalk = false) => {
    const entry = newEntry(title, inTalk);
    asked.push(entry);
    showAnswers();
    try {
        const reply = await fetch(path, { method: "POST", headers: { ...headers(), "x-request-id": entry.answer }, body: JSON.stringify({ model: run.hello.model, stream: true, temperature: 0, ...body }) });
        if (!reply.ok) { wantsKey(reply); throw new Error(await problemOf(reply)); }
        if (reply.status !== 202) { reply.body.cancel(); throw new Error("The server does not know this tab: load the page again."); }
    } catch (problem) {
        Object.assign(entry, { error: problem.message, done: true });
        showAnswers();
    }
};

const askQuestion = (text, more = {}) => ask(text, "v1/chat/completions", { messages: [{ role: "user", content: text }], max_tokens: 128, ...more });
const askNext = (question) => ask(question, "v1/chat/completions", { messages: messagesOf($("system").value, asked, question), max_tokens: LONGEST_ANSWER }, true);
const nextQuestion = () => $("questions").children[count++ % $("questions").children.length].value;
const askLong = () => ask($("long").textContent, "v1/completions", { prompt: randomTokens(longPrompt(run.hello)), max_tokens: 24, ignore_eos: true });
// They go on past the ends of their answers, so that they still decode when the long prompt comes.
const askBoth = () => {
    for (let short = 0; short < 3; short++) askQuestion(nextQuestion(), { ignore_eos: true, max_tokens: 160 });
    setTimeout(askLong, 250);
    setTimeout(() => askQuestion(nextQuestion()), 350);
};

const showAnswers = () => {
    const list = $("answers"), say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
    while (list.children.length > asked.length) list.lastChild.remove();
    asked.forEach((entry, place) => {
        const item = list.children[place] ?? list.appendChild(document.createElement("li"));
        if (!item.firstChild) item.append(...["b", "span", "em"].map((name) => document.createElement(name)));
        [entry.title, entry.text, entry.error].forEach((text, part) => say(item.children[part], text));
    });
    list.scrollTop = list.scrollHeight;
};

// ---- drawing

const seen = () => still ?? run;

const timesShown = () => {
    const width = Number($("window").value), step = chosen, { clock } = seen();
    const end = step && step.at + step.seconds < clock - width ? step.at + step.seconds + width / 2 : clock;
    return { from: Math.max(end - width, 0), to: Math.max(end, width) };
};

// A bar; with a colour for stripes, a striped one: what the colour says must be seen without it, too.
const drawBar = (pen, left, top, wide, stripes) => {
    pen.fillRect(left, top, wide, 18);
    if (!stripes) return;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, wide, 18);
    pen.clip();
    pen.strokeStyle = stripes;
    pen.lineWidth = 2;
    pen.beginPath();
    for (let place = Math.max(left, 0) - 18; place < Math.min(left + wide, 4000); place += 9) { pen.moveTo(place, top + 18); pen.lineTo(place + 18, top); }
    pen.stroke();
    pen.restore();
};

const promptOf = (lane) => lane.prompt === null ? "" : lane.prompt.toLocaleString("en");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const penOf = (canvas, high) => {
    const ratio = devicePixelRatio || 1, wide = canvas.clientWidth, pen = canvas.getContext("2d");
    if (canvas.width !== Math.round(wide * ratio)) { canvas.width = Math.round(wide * ratio); canvas.height = Math.round(high * ratio); }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = "600 13px system-ui, sans-serif";
    return pen;
};

const drawSpans = (pen, spans, top, x, scale) => {
    const fills = Object.fromEntries(["chunk", "chunk-even", "decode", "stall", "stripe"].map((name) => [name, colour(name)]));
    spans.forEach((span, number) => {
        pen.fillStyle = fills[span.kind === "chunk" && number % 2 ? "chunk-even" : span.kind];
        drawBar(pen, x(span.at), top, Math.max(span.seconds * scale - 1, 1), span.kind === "stall" ? fills.stripe : "");
    });
};

const drawTimeline = () => {
    const canvas = $("timeline"), wide = canvas.clientWidth, high = LANES * LANE, pen = penOf(canvas, high);
    const { from, to } = timesShown(), lanes = lanesBetween(seen(), from, to, LANES);
    const widest = (texts) => Math.max(0, ...texts.map((text) => pen.measureText(text).width));
    const names = widest(lanes.map((lane) => lane.name)), prompts = widest(lanes.map(promptOf));
    const scale = (wide - (labels = 4 + names + 8 + prompts + 8)) / (to - from);
    const x = (time) => labels + (time - from) * scale;
    lanes.forEach((lane, place) => {
        const top = place * LANE;
        pen.fillStyle = colour(`c${lane.request % COLOURS}`);
        pen.fillText(lane.name, 4, top + 18);
        pen.fillStyle = colour("quiet");
        pen.fillText(promptOf(lane), labels - 8 - pen.measureText(promptOf(lane)).width, top + 18);
        pen.save();
        pen.beginPath();
        pen.rect(labels, top, wide - labels, LANE);
        pen.clip();
        pen.fillStyle = colour("waiting");
        pen.fillRect(x(lane.from), top + 11, x(lane.until ?? seen().clock) - x(lane.from), 4);
        drawSpans(pen, lane.spans.filter((span) => span.at + span.seconds >= from && span.at <= to), top + 4, x, scale);
        pen.restore();
    });
    if (chosen) {
        pen.strokeStyle = colour("text");
        pen.strokeRect(x(chosen.at) - 1, 1, Math.max(chosen.seconds * scale, 2) + 1, high - 2);
    }
};

// Both demonstrations on one scale of time, from the moment when the long prompt comes.
const drawDemos = () => {
    const { demos } = seen(), shown = Object.values(demos).filter(Boolean), width = Math.max(0, ...shown.map((demo) => demo.seconds)) + 2 * AROUND;
    for (const [kind, demo] of Object.entries(demos)) {
        const canvas = $(kind), words = demo ? demoInWords(demo) : NO_DEMO[kind];
        canvas.hidden = !demo;
        if ($(`${kind}-said`).textContent !== words) $(`${kind}-said`).textContent = words;
        if (!demo) continue;
        const pen = penOf(canvas, 2 * LANE - 4), left = 4 + Math.max(...shown.flatMap((each) => each.lanes.map((lane) => pen.measureText(lane.name).width))) + 8;
        const scale = (canvas.clientWidth - left) / width, x = (time) => left + (time + AROUND) * scale;
        demo.lanes.forEach((lane, place) => {
            pen.fillStyle = colour(`c${lane.request % COLOURS}`);
            pen.fillText(lane.name, 4, place * LANE + 16);
            pen.save();
            pen.beginPath();
            pen.rect(left, 0, canvas.clientWidth - left, 2 * LANE);
            pen.clip();
            drawSpans(pen, lane.spans, place * LANE + 2, x, scale);
            pen.restore();
        });
    }
};
const NO_DEMO = {
    large: `Large steps: set Tokens per step above ${PROMISE} and press “A long one among three short ones”.`,
    small: `Small steps: set Tokens per step to ${PROMISE} or less, and press it again.`,
};

const cellOf = (cell, budget) => {
    const made = document.createElement("i");
    made.style.flex = `${cell.tokens / budget} 0 0`;
    made.style.background = colourOf(cell.request);
    made.style.opacity = cell.kind === "decode" ? 1 : 0.8;
    const name = nameOf(cell.request); // a cell of one token has room for one letter
    made.textContent = cell.kind === "decode" ? name[0] : cell.tokens > budget / 12 ? name : "";
    made.title = `${nameOf(cell.request)}: ${cell.kind === "decode" ? "one token of its answer" : `${cell.tokens} tokens of its prompt`}`;
    return made;
};

const stripRow = (step) => {
    const row = document.createElement("div"), cells = document.createElement("div"), rest = document.createElement("i");
    row.className = step === chosen ? "strip at" : "strip";
    cells.className = "cells";
    const budget = Math.max(step.budget, step.tokens);
    rest.className = "rest";
    rest.style.flex = `${(budget - step.tokens) / budget} 0 0`;
    cells.append(...stripOf(step).map((cell) => cellOf(cell, budget)), rest);
    const texts = [step.number, `${step.tokens} of ${step.budget}`].map((text) => Object.assign(document.createElement("span"), { textContent: text }));
    row.append(texts[0], cells, texts[1]);
    row.title = stepInWords(step);
    return row;
};

const drawStrips = () => {
    const last = chosen ? seen().steps.indexOf(chosen) + Math.ceil(STRIPS / 2) : seen().steps.length;
    const end = Math.min(Math.max(last, STRIPS), seen().steps.length);
    $("strips").replaceChildren(...seen().steps.slice(Math.max(end - STRIPS, 0), end).map(stripRow));
};

const drawMap = () => {
    const shown = chosen ?? seen(), blocks = run.hello.num_blocks, owners = ownersOf(shown.tables, blocks), cached = new Set(shown.cached);
    const map = $("map");
    while (map.children.length < blocks) map.append(document.createElement("span"));
    owners.forEach((requests, block) => {
        const cell = map.children[block], count = requests.length;
        const kind = count > 1 ? "cell shared" : count ? "cell owned" : cached.has(block) ? "cell cached" : "cell";
        const text = count > 1 ? String(count) : count ? nameOf(requests[0])[0] : "";
        if (cell.className !== kind) cell.className = kind;
        if (cell.textContent !== text) cell.textContent = text;
        cell.style.background = count === 1 ? colourOf(requests[0]) : "";
    });
    const used = owners.filter((requests) => requests.length).length;
    $("map-said").textContent = `${used} of ${blocks} used, ${cached.size} cached; ${run.hello.block_size} tokens each`;
};

const stateOf = (lane) => {
    if (lane.reason) return lane.reason;
    if (lane.tokens) return "decodes";
    return lane.spans.length ? `prefill: ${lane.computed}` : "waits";
};

const drawRequests = () => {
    $("requests").replaceChildren(...seen().lanes.slice(-8).reverse().map((lane) => {
        const row = document.createElement("tr"), head = document.createElement("th"), swatch = document.createElement("span");
        swatch.className = "swatch";
        swatch.style.background = colourOf(lane.request);
        head.scope = "row";
        head.append(swatch, lane.name);
        const texts = [lane.prompt ?? "–", lane.cached, milliseconds(lane.ttft), lane.tokens, lane.tokens > 1 ? milliseconds(lane.longest) : "–", lane.stalls, stateOf(lane)];
        row.append(head, ...texts.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
        return row;
    }));
};

const draw = () => {
    requestAnimationFrame(draw);
    if (!dirty || !run.hello) return;
    dirty = false;
    drawTimeline();
    drawStrips();
    drawMap();
    drawRequests();
    drawDemos();
    showAnswers();
    const running = Object.keys(run.tables).length;
    say(`${running} running, ${run.waiting} waiting; ${run.number} steps${still ? "; the picture is frozen" : ""}`);
};

// ---- choosing a step

const choose = (step) => {
    chosen = step ?? null;
    $("said").textContent = chosen ? stepInWords(chosen) : still ? "Frozen: choose a step with the arrow keys, or point at one." : "Follows the newest step.";
    dirty = true;
};

$("timeline").addEventListener("keydown", (event) => {
    const at = chosen ? seen().steps.indexOf(chosen) : seen().steps.length, last = seen().steps.length - 1;
    const place = { ArrowLeft: Math.max(at - 1, 0), ArrowRight: Math.min(at + 1, last), Home: 0, End: last }[event.key];
    if (event.key === "Escape") choose(null);
    else if (place !== undefined) { event.preventDefault(); choose(seen().steps[place]); }
});
$("timeline").addEventListener("pointermove", (event) => {
    const box = $("timeline").getBoundingClientRect(), { from, to } = timesShown();
    const time = from + (event.clientX - box.left - labels) / (box.width - labels) * (to - from);
    choose(seen().steps.find((step) => step.at <= time && time < step.at + step.seconds));
});
$("timeline").addEventListener("pointerleave", () => choose(null));

$("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (run.hello) askNext($("question").value || nextQuestion());
    $("question").value = "";
});
$("key").addEventListener("submit", (event) => {
    event.preventDefault();
    key = $("secret").value;
    $("key").hidden = true;
    follow();
});
$("new").addEventListener("click", () => { asked = []; showAnswers(); });
$("short").addEventListener("click", () => run.hello && askQuestion(nextQuestion()));
$("long").addEventListener("click", () => run.hello && askLong());
$("both").addEventListener("click", () => run.hello && askBoth());
$("stop").addEventListener("click", () => fetch("answers", { method: "DELETE", headers: headers() }));
$("freeze").addEventListener("click", () => {
    still = still ? null : frozen(run);
    $("freeze").textContent = still ? "Go on" : "Freeze";
    choose(null);
});
$("budget").addEventListener("input", () => sayBudget(run.hello.budgets[$("budget").value]));
$("budget").addEventListener("change", () => setBudget(run.hello.budgets[$("budget").value]));
$("window").addEventListener("change", () => { dirty = true; });
addEventListener("resize", () => { dirty = true; });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { dirty = true; });
document.addEventListener("visibilitychange", () => document.hidden ? hide() : show());
addEventListener("pagehide", hide); // some browsers load again without saying that the page is hidden
if (!document.hidden) show();
draw();
