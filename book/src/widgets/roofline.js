"use strict";

// What a step of a model takes on a device at least: the time to read its weights, or that to compute, whichever is
// longer. First the arithmetic and the picture, which know no page; then the controls. No network.
// `var`, because the page for printing loads this file once for each widget.
var roofline = (() => {
    const { round, text } = svgParts;
    const TOKENS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048];
    const DOTS = [1, 4, 16, 64, 256, 1024];
    const [LEFT, RIGHT, TOP, HEIGHT] = [58, 12, 30, 220];
    const [FEWEST, MOST] = [-1, 13]; // operations per byte, as powers of two

    /** One step: its bytes and operations, the seconds that each takes, and the longer of the two. */
    function step({ models, bits, devices }, at, tokens = at.tokens) {
        const { layers, head, experts, count, used } = models[at.model];
        const device = devices[at.device];
        const read = experts && experts * (1 - (1 - used / count) ** tokens); // tokens choose at random
        const bytes = ((layers + read) * bits[at.bits]) / 8 + 2 * head;
        const operations = 2 * tokens * (layers + head + (experts && (experts * used) / count));
        const [memory, arithmetic] = [bytes / device.bytes, operations / device.operations];
        return { tokens, bytes, operations, memory, arithmetic, seconds: Math.max(memory, arithmetic) };
    }

    /** The smallest step whose limit is arithmetic. */
    function ridge(table, at) {
        let tokens = 1;
        for (let one = step(table, at, 1); one.arithmetic < one.memory; one = step(table, at, tokens)) tokens += 1;
        return tokens;
    }

    /** "10 G": three digits at most. */
    function short(number) {
        const power = Math.floor(Math.log10(number) / 3);
        return `${Number((number / 1000 ** power).toPrecision(3))} ${["", "k", "M", "G", "T", "P"][power]}`.trim();
    }

    function dot(kind, x, y, radius) {
        return `<circle class="${kind}" cx="${round(x)}" cy="${round(y)}" r="${radius}"/>`;
    }

    /** The roof of a device, and steps on it: small dots for some sizes, a large one for the chosen size. */
    function draw(table, at, width) {
        const device = table.devices[at.device];
        const bottom = TOP + HEIGHT;
        const corner = device.operations / device.bytes;
        const middle = Math.sqrt(corner * 2 ** FEWEST); // of the slope, for its label
        const [slow, fast] = [Math.log10(device.bytes * 2 ** FEWEST), Math.log10(device.operations) + 0.25];
        const x = (intensity) => LEFT + ((Math.log2(intensity) - FEWEST) / (MOST - FEWEST)) * (width - LEFT - RIGHT);
        const y = (speed) => bottom - ((Math.log10(speed) - slow) / (fast - slow)) * HEIGHT;
        const place = (tokens) => {
            const { bytes, operations, seconds } = step(table, at, tokens);
            return [x(operations / bytes), y(operations / seconds)];
        };
        const columns = [0, 2, 4, 6, 8, 10, 12].map((power) => 2 ** power);
        const rows = Array.from({ length: 9 }, (_, k) => 10 ** (Math.ceil(slow) + k)).filter((n) => Math.log10(n) < fast);
        const lines = columns.map((n) => `M${round(x(n))} ${TOP}V${bottom}`).join("") +
            rows.map((n) => `M${LEFT} ${round(y(n))}H${width - RIGHT}`).join("");
        const [cx, cy] = place(at.tokens);
        const roof = `M${LEFT} ${bottom}L${round(x(corner))} ${round(y(device.operations))}H${width - RIGHT}`;
        const beside = x(corner) > width - 110 ? ["label-end", -6] : ["label-start", 6];
        // left of the slope, and right of the axis and its numbers
        const named = Math.max(LEFT + 46, x(middle) - 10);
        const rise = (bottom - y(device.operations)) / (x(corner) - LEFT);
        const side = cx > width - 90 ? ["label-end", -12] : ["label-start", 12];
        return (
            `<svg viewBox="0 0 ${width} ${bottom + 44}" role="img" aria-label="Roofline: ${at.model}, ${at.bits}, ${at.device}">` +
            `<path class="grid" d="${lines}"/>` +
            columns.map((n) => text("label small", x(n), bottom + 14, n.toLocaleString("en"))).join("") +
            rows.map((n) => text("label-end small", LEFT - 6, y(n), short(n))).join("") +
            text("label-start small", 0, 10, "operations per second") +
            text("label-end small", width - RIGHT, bottom + 34, "operations per byte") +
            `<path class="dash" d="M${round(x(corner))} ${round(y(device.operations))}V${bottom}"/>` +
            `<path class="line" d="${roof}"/>` +
            text(`${beside[0]} small halo`, x(corner) + beside[1], bottom - 12, `ridge point ${Math.round(corner)}`) +
            text("label-end small halo", named, bottom - (named + 10 - LEFT) * rise - 10, "memory") +
            text("label-end small halo", width - RIGHT, y(device.operations) - 11, "arithmetic") +
            DOTS.map((tokens) => dot("box-a fine", ...place(tokens), 4)).join("") +
            dot("box-b", cx, cy, 8) +
            text(`${side[0]} small halo strong`, cx + side[1], cy + 20, words(at.tokens)) +
            "</svg>"
        );
    }

    const words = (tokens) => `${tokens.toLocaleString("en")} token${tokens === 1 ? "" : "s"}`;

    /** "11.9 ms", "2,441 ms". */
    function ms(seconds) {
        const digits = seconds < 0.001 ? 3 : seconds < 0.1 ? 1 : 0;
        const limits = { minimumFractionDigits: digits, maximumFractionDigits: digits };
        return `${(1000 * seconds).toLocaleString("en", limits)} ms`;
    }

    function figures(table, at) {
        const { tokens, bytes, operations, memory, arithmetic, seconds } = step(table, at);
        const { bytes: speed, operations: most } = table.devices[at.device];
        return [
            ["read the weights", `${short(bytes)}B in ${ms(memory)}`],
            ["compute", `${short(operations)} operations in ${ms(arithmetic)}`],
            ["operations per byte", `${Number((operations / bytes).toPrecision(3))}; ridge point ${Math.round(most / speed)}`],
            ["the step takes at least", ms(seconds)],
            ["tokens per second at most", Math.round(tokens / seconds).toLocaleString("en")],
        ];
    }

    /** Which limit it is, and what one token more costs. */
    function summary(table, at) {
        const { memory, arithmetic, seconds } = step(table, at);
        const from = ridge(table, at);
        const what = `${words(at.tokens)} per step: ${ms(seconds)}, limited by`;
        if (arithmetic >= memory) return `${what} arithmetic. Each further token costs its full time.`;
        const grows = table.models[at.model].experts ? "It also reads more experts with every token. " : "";
        return `${what} memory. ${grows}Arithmetic becomes the limit at ${words(from)} per step.`;
    }

    function start(place, number) {
        if (place.classList.contains("live")) return; // the page for printing loads this file once for each widget
        const { element, slider, select, controls, table: rows, fitted, status } = widgetParts;
        const table = JSON.parse(place.querySelector("script[type='application/json']").textContent);
        const { model, bits, device, tokens } = { ...table.start, ...place.dataset };
        const at = { model, bits, device, tokens: Number(tokens) };
        const picture = place.querySelector("figure > div");
        const below = element("div", { class: "table-wrapper" });
        const source = element("p", { class: "measured-on" });
        const { said, set } = status();

        function update(width) {
            picture.innerHTML = draw(table, at, width); // made of numbers and names of the table
            below.replaceChildren(rows([at.model, `${at.bits}, ${at.device}`], figures(table, at)));
            source.textContent = `${table.devices[at.device].says} Left out: attention, keys and values, norms.`;
            set(summary(table, at));
        }

        let redraw = () => {};
        const change = (name) => (value) => {
            at[name] = value;
            redraw();
        };
        const choices = [["model", "Model", "models"], ["bits", "Weights of the layers", "bits"], ["device", "Device", "devices"]];
        const inputs = choices.map(([name, label, from]) =>
            select(`roofline-${number}-${name}`, label, Object.keys(table[from]), at[name], change(name)));
        const range = { min: 0, max: TOKENS.length - 1, step: 1 };
        const shown = (position) => words(TOKENS[position]);
        inputs.push(slider(`roofline-${number}-tokens`, "Tokens per step", range, TOKENS.indexOf(at.tokens), shown,
            (position) => change("tokens")(TOKENS[position])));
        place.prepend(controls(...inputs));
        place.append(said, below, source);
        place.classList.add("live");
        redraw = fitted(place, update);
    }

    if (typeof document !== "undefined") document.querySelectorAll(".roofline-widget").forEach(start);
    return { step, ridge, draw, summary, TOKENS };
})();
