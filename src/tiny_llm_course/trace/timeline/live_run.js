// What the engine has told so far: steps and lanes, on a clock that stands still while there is no work.
// Nothing of a page in here, but for PROMISE: tokens of prompts for which a running request agrees to wait.
const KEPT_STEPS = 600, KEPT_LANES = 24;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

const newRun = () => ({ hello: null, steps: [], lanes: [], tables: {}, cached: [], free: null, waiting: 0, clock: 0, number: 0, demos: { large: null, small: null } });

// A copy that stays as it is: steps and spans never change, the lists of them do.
const frozen = (run) => ({ ...run, demos: { ...run.demos }, tables: { ...run.tables }, steps: [...run.steps], lanes: run.lanes.map((lane) => ({ ...lane, spans: [...lane.spans] })) });

const longPrompt = (hello) => Math.min(2000, Math.floor(0.75 * hello.max_model_len));

const nameOf = (request) => LETTERS[request % 26] + (request < 26 ? "" : Math.floor(request / 26));

const laneOf = (run, request, prompt) => {
    let lane = run.lanes.find((each) => each.request === request);
    if (!lane) {
        lane = { request, name: nameOf(request), prompt, cached: 0, arrived: null, from: run.clock, spans: [],
                 last: null, tokens: 0, computed: 0, ttft: null, longest: 0, waitedFrom: null, waited: 0, stalls: 0, budget: 0, firstAt: null, reason: null, until: null, preempted: 0 };
        run.lanes.push(lane);
        while (run.lanes.length > KEPT_LANES) run.lanes.shift();
    }
    return lane;
};

// A message that the engine has sent. A reader that was too slow has lost some: nothing here relies on all of them.
const take = (run, message) => {
    if (message.kind === "hello") Object.assign(run, newRun(), { hello: message, demos: run.demos }); // another server may count from 0
    else if (message.kind === "step") takeStep(run, message);
    else takeRequest(run, message);
    return run;
};

const takeRequest = (run, message) => {
    const lane = laneOf(run, message.request, message.prompt);
    lane.prompt = message.prompt;
    if (message.kind === "arrive") lane.arrived = message.time;
    if (message.kind === "preempt") lane.preempted += 1;
    if (message.kind === "finish") {
        lane.reason = message.reason;
        lane.until = run.clock;
        lane.cached = message.cached;
        delete run.tables[message.request];
        if (run.hello && lane.prompt === longPrompt(run.hello) && lane.firstAt !== null) keepDemo(run, lane);
    }
    Object.assign(run, { cached: message.cached_blocks, free: message.free, waiting: message.waiting });
};

const takeStep = (run, message) => {
    const seconds = message.time - message.start;
    const step = { number: ++run.number, at: run.clock, seconds, parts: message.parts, budget: message.budget,
                   tokens: message.parts.reduce((sum, part) => sum + part.tokens, 0), tables: message.tables,
                   cached: message.cached_blocks, free: message.free, waiting: message.waiting };
    run.steps.push(step);
    while (run.steps.length > KEPT_STEPS) run.steps.shift();
    run.clock += seconds;
    Object.assign(run, { tables: message.tables, cached: message.cached_blocks, free: message.free, waiting: message.waiting });
    const prompts = message.parts.filter((part) => part.kind === "chunk").reduce((sum, part) => sum + part.tokens, 0);
    for (const lane of run.lanes) if (lane.last !== null && lane.reason === null) lane.waited += prompts;
    for (const part of message.parts) for (const request of part.requests) takeSpan(run, step, part, request, message);
    forgetSpans(run);
};

const takeSpan = (run, step, part, request, message) => {
    const lane = laneOf(run, request, null);
    if (part.kind === "chunk") Object.assign(lane, { computed: part.context + part.tokens, budget: step.budget });
    // A stall begins where the last token came: what was computed since then is what this one has waited for.
    const isStall = part.kind === "decode" && lane.waited > PROMISE;
    const at = isStall ? lane.waitedFrom : step.at;
    const gap = lane.last === null || !part.sampled.includes(request) ? 0 : message.time - lane.last;
    lane.spans.push({ kind: isStall ? "stall" : part.kind, at, seconds: run.clock - at, gap });
    if (!part.sampled.includes(request)) return;
    lane.stalls += isStall;
    lane.waited = 0;
    lane.waitedFrom = run.clock;
    if (lane.last === null) lane.firstAt = run.clock;
    if (lane.last === null && lane.arrived !== null) lane.ttft = message.time - lane.arrived;
    if (lane.last !== null) lane.longest = Math.max(lane.longest, message.time - lane.last);
    lane.last = message.time;
    lane.tokens += 1;
};

const forgetSpans = (run) => {
    const oldest = run.steps[0].at;
    for (const lane of run.lanes) while (lane.spans.length && lane.spans[0].at < oldest) lane.spans.shift();
};

// A demonstration: a long prompt, and beside it the answer that had to wait longest for a token meanwhile. Kept with
// the last one in large steps, or in small ones: there the others wait for no more than they agree to.
const AROUND = 0.1; // seconds before its arrival and after its first token
const keepDemo = (run, long) => {
    const from = long.from, to = long.firstAt;
    const longest = (lane) => Math.max(0, ...lane.spans.filter((span) => span.at < to && span.at + span.seconds > from).map((span) => span.gap));
    const other = run.lanes.filter((lane) => lane !== long).reduce((most, lane) => most && longest(most) >= longest(lane) ? most : lane, null);
    if (other === null || longest(other) === 0) return;
    const around = (span) => span.at < to + AROUND && span.at + span.seconds > from - AROUND;
    const spansOf = (lane) => lane.spans.filter(around).map((span) => ({ ...span, at: span.at - from }));
    run.demos[long.budget > PROMISE ? "large" : "small"] = {
        budget: long.budget, gap: longest(other), ttft: long.ttft, seconds: to - from,
        lanes: [other, long].map((lane) => ({ request: lane.request, name: lane.name, spans: spansOf(lane) })),
    };
};

const demoInWords = (demo) => `Steps of ${demo.budget.toLocaleString("en")} tokens: longest gap ${milliseconds(demo.gap)}; TTFT of the long prompt ${milliseconds(demo.ttft)}`;
const milliseconds = (seconds) => seconds === null ? "–" : `${(1000 * seconds).toFixed(seconds < 0.1 ? 1 : 0)} ms`;

// The lanes that have something between two times of the clock, the newest `most`, oldest first.
const lanesBetween = (run, from, to, most) => run.lanes
    .filter((lane) => lane.from <= to && (lane.until === null || lane.until >= from))
    .slice(-most);

// A step in words: how many decode, which chunks there are, and how much of the budget that is.
const stepInWords = (step) => {
    const decodes = step.parts.filter((part) => part.kind === "decode").flatMap((part) => part.requests);
    const chunks = step.parts.filter((part) => part.kind === "chunk");
    const said = [];
    if (decodes.length) said.push(decodes.length === 1 ? "1 decode" : `${decodes.length} decodes`);
    for (const part of chunks) {
        said.push(`${part.tokens} of ${nameOf(part.requests[0])}'s prompt from ${part.context}`);
    }
    return `step ${step.number}, ${(1000 * step.seconds).toFixed(1)} ms: ${said.join(" + ")} = ${step.tokens} of ${step.budget} tokens`;
};

// The tokens of a step as cells of a strip: decodes first, one each, then the chunks.
const stripOf = (step) => {
    const cells = [];
    for (const part of step.parts) if (part.kind === "decode") for (const request of part.requests) cells.push({ request, kind: "decode", tokens: 1 });
    for (const part of step.parts) if (part.kind === "chunk") cells.push({ request: part.requests[0], kind: "chunk", tokens: part.tokens });
    return cells;
};

// Who owns each block: a list of requests by block, empty for a block that nobody uses.
const ownersOf = (tables, blocks) => {
    const owners = Array.from({ length: blocks }, () => []);
    for (const [request, table] of Object.entries(tables)) for (const block of table) owners[block]?.push(Number(request));
    return owners;
};
