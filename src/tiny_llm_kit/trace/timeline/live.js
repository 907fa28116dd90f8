// Draws the run of `live_run.js`, and asks the server that this page came from.
const $ = (id) => document.getElementById(id);
const LANES = 8, LANE = 27, STRIPS = 9, COLOURS = 8;
const run = newRun();
const LONGEST_ANSWER = 1024; // tokens; some models never stop by themselves
let key = "", chosen = null, dirty = true, open = new Set(), asked = 0, talk = [], labels = 0; // labels: pixels left of the timeline

const headers = () => ({ "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) });
const say = (text) => { $("state").textContent = text; };
const ms = (seconds) => seconds === null ? "–" : `${(1000 * seconds).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
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

const follow = async () => {
    for (;; await new Promise((wake) => setTimeout(wake, 1000))) {
        try {
            const reply = await fetch("events", { headers: headers() });
            if (wantsKey(reply)) { say("This server wants an API key."); return; }
            if (!reply.ok) throw new Error(await problemOf(reply));
            for await (const data of dataOf(reply)) heard(JSON.parse(data));
            say("The server has ended the stream. Trying again…");
        } catch (problem) {
            say(`No connection (${problem.message}). Trying again…`);
        }
    }
};

const heard = (message) => {
    take(run, message);
    if (message.kind === "hello") { chosen = null; greet(message); }
    dirty = true;
};

const greet = (hello) => {
    const slider = $("budget"), place = hello.budgets.indexOf(hello.budget);
    slider.max = hello.budgets.length - 1;
    slider.value = place < 0 ? slider.max : place;
    slider.disabled = !hello.chunked || !hello.controls;
    sayBudget(hello.budget);
    $("long").textContent = `Long prompt (${longest().toLocaleString("en")} tokens)`;
};

const sayBudget = (tokens) => {
    const fixed = run.hello.controls ? "" : " (fixed: start the server with --live-controls)";
    const said = run.hello.chunked ? `${tokens.toLocaleString("en")} tokens${fixed}` : "whole prompts: chunked prefill is off";
    $("budget-said").textContent = said;
    $("budget").setAttribute("aria-valuetext", said);
};

const setBudget = async () => {
    const wanted = run.hello.budgets[$("budget").value];
    const reply = await fetch("step_budget", { method: "POST", headers: headers(), body: JSON.stringify({ max_num_batched_tokens: wanted, page: run.hello.page }) });
    if (reply.ok) run.hello.budget = (await reply.json()).max_num_batched_tokens;
    else say(await problemOf(reply));
    sayBudget(run.hello.budget);
};

// ---- asking

const longest = () => Math.min(2000, Math.floor(0.75 * run.hello.max_model_len));

const randomTokens = (count) => Array.from({ length: count }, () => Math.floor(Math.random() * run.hello.vocab_size));

// The answer, as far as it came; empty if the server refused.
const ask = async (title, path, body) => {
    const entry = document.createElement("li"), asking = document.createElement("b"), answer = document.createElement("span");
    asking.textContent = title;
    entry.append(asking, answer);
    $("answers").append(entry);
    $("answers").scrollTop = $("answers").scrollHeight;
    const stop = new AbortController();
    open.add(stop);
    let told = "";
    try {
        const reply = await fetch(path, { method: "POST", headers: headers(), signal: stop.signal, body: JSON.stringify({ model: run.hello?.model ?? "", stream: true, temperature: 0, ...body }) });
        if (!reply.ok) { wantsKey(reply); throw new Error(await problemOf(reply)); }
        for await (const data of dataOf(reply)) {
            if (data === "[DONE]") break;
            const piece = JSON.parse(data);
            if (piece.error) throw new Error(piece.error.message);
            for (const choice of piece.choices) told += choice.text ?? choice.delta.content ?? "";
            answer.textContent = told;
            $("answers").scrollTop = $("answers").scrollHeight;
        }
    } catch (problem) {
        answer.className = "error";
        answer.textContent += stop.signal.aborted ? " (stopped)" : ` ${problem.message}`;
    }
    open.delete(stop);
    return told;
};

const askQuestion = (text, more = {}) => ask(text, "v1/chat/completions", { messages: [{ role: "user", content: text }], max_tokens: 128, ...more });
const askNext = async (question) => {
    const current = talk; // a new conversation may begin before the answer ends
    const body = { messages: messagesOf($("system").value, current, question), max_tokens: LONGEST_ANSWER };
    remember(current, question, await ask(question, "v1/chat/completions", body));
};
const beginAgain = () => {
    talk = [];
    $("answers").replaceChildren();
};
const nextQuestion = () => $("questions").children[asked++ % $("questions").children.length].value;
const askLong = () => ask($("long").textContent, "v1/completions", { prompt: randomTokens(longest()), max_tokens: 24, ignore_eos: true });
// They go on past the ends of their answers, so that they still decode when the long prompt comes.
const askBoth = () => {
    for (let count = 0; count < 3; count++) askQuestion(nextQuestion(), { ignore_eos: true, max_tokens: 160 });
    setTimeout(askLong, 250);
    setTimeout(() => askQuestion(nextQuestion()), 350);
};

// ---- drawing

const timesShown = () => {
    const width = Number($("window").value), step = chosen;
    const end = step && step.at + step.seconds < run.clock - width ? step.at + step.seconds + width / 2 : run.clock;
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

const drawTimeline = () => {
    const canvas = $("timeline"), ratio = devicePixelRatio || 1, wide = canvas.clientWidth, high = LANES * LANE;
    if (canvas.width !== Math.round(wide * ratio)) { canvas.width = Math.round(wide * ratio); canvas.height = Math.round(high * ratio); }
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const pen = canvas.getContext("2d"), { from, to } = timesShown(), lanes = lanesBetween(run, from, to, LANES);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = "600 13px system-ui, sans-serif";
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
        pen.fillRect(x(lane.from), top + 11, x(lane.until ?? run.clock) - x(lane.from), 4);
        lane.spans.forEach((span, number) => {
            if (span.at + span.seconds < from || span.at > to) return;
            pen.fillStyle = span.kind === "chunk" && number % 2 ? colour("chunk-even") : colour(span.kind);
            drawBar(pen, x(span.at), top + 4, Math.max(span.seconds * scale - 1, 1), span.kind === "stall" ? colour("stripe") : "");
        });
        pen.restore();
    });
    if (chosen) {
        pen.strokeStyle = colour("text");
        pen.strokeRect(x(chosen.at) - 1, 1, Math.max(chosen.seconds * scale, 2) + 1, high - 2);
    }
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
    const last = chosen ? run.steps.indexOf(chosen) + Math.ceil(STRIPS / 2) : run.steps.length;
    const end = Math.min(Math.max(last, STRIPS), run.steps.length);
    $("strips").replaceChildren(...run.steps.slice(Math.max(end - STRIPS, 0), end).map(stripRow));
};

const drawMap = () => {
    const shown = chosen ?? run, blocks = run.hello.num_blocks, owners = ownersOf(shown.tables, blocks), cached = new Set(shown.cached);
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
    $("requests").replaceChildren(...run.lanes.slice(-8).reverse().map((lane) => {
        const row = document.createElement("tr"), head = document.createElement("th"), swatch = document.createElement("span");
        swatch.className = "swatch";
        swatch.style.background = colourOf(lane.request);
        head.scope = "row";
        head.append(swatch, lane.name);
        const texts = [lane.prompt ?? "–", lane.cached, ms(lane.ttft), lane.tokens, lane.tokens > 1 ? ms(lane.longest) : "–", lane.stalls, stateOf(lane)];
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
    const running = Object.keys(run.tables).length;
    say(`${running} running, ${run.waiting} waiting; ${run.number} steps`);
};

// ---- choosing a step

const choose = (step) => {
    chosen = step ?? null;
    $("said").textContent = chosen ? stepInWords(chosen) : "Follows the newest step.";
    dirty = true;
};

$("timeline").addEventListener("keydown", (event) => {
    const at = chosen ? run.steps.indexOf(chosen) : run.steps.length, last = run.steps.length - 1;
    const place = { ArrowLeft: Math.max(at - 1, 0), ArrowRight: Math.min(at + 1, last), Home: 0, End: last }[event.key];
    if (event.key === "Escape") choose(null);
    else if (place !== undefined) { event.preventDefault(); choose(run.steps[place]); }
});
$("timeline").addEventListener("pointermove", (event) => {
    const box = $("timeline").getBoundingClientRect(), { from, to } = timesShown();
    const time = from + (event.clientX - box.left - labels) / (box.width - labels) * (to - from);
    choose(run.steps.find((step) => step.at <= time && time < step.at + step.seconds));
});
$("timeline").addEventListener("pointerleave", () => choose(null));

$("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    askNext($("question").value || nextQuestion());
    $("question").value = "";
});
$("key").addEventListener("submit", (event) => {
    event.preventDefault();
    key = $("secret").value;
    $("key").hidden = true;
    follow();
});
$("new").addEventListener("click", beginAgain);
$("short").addEventListener("click", () => askQuestion(nextQuestion()));
$("long").addEventListener("click", () => run.hello && askLong());
$("both").addEventListener("click", () => run.hello && askBoth());
$("stop").addEventListener("click", () => open.forEach((stop) => stop.abort()));
$("budget").addEventListener("input", () => sayBudget(run.hello.budgets[$("budget").value]));
$("budget").addEventListener("change", setBudget);
$("window").addEventListener("change", () => { dirty = true; });
addEventListener("resize", () => { dirty = true; });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { dirty = true; });
follow();
draw();
