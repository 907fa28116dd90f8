"use strict";

// The steps of a small run, one at a time. Nothing is scheduled here: the reference ran when the book was built, and the
// story has what it planned: steps of requests, or copies between levels of blocks. First the picture, which knows no page; then the buttons. No network.
// `var`, because the page for printing loads this file once for each widget.
var stepPlayer = (() => {
    const { round, text, box } = svgParts;
    const LEFT = 66; // room for the names of the rows
    const [CELL, LANE, LANES] = [26, 38, 3];
    const PLACES = { waits: 14, step: 66, runs: 138, blocks: 138 + LANE * LANES + 16 };
    const LONGEST = 28; // tokens of a request
    const LEVEL = 84; // from one level to the next

    const kind = (name) => `box-${"abcd"["ABCDE".indexOf(name) % 4]}`;

    function cell(style, x, y, width, label, below) {
        return (
            box(style, x, y - CELL / 2, width, CELL) +
            text("label small", x + width / 2, y, label) +
            (below === undefined ? "" : text("label tiny", x + width / 2, y + CELL / 2 + 9, below))
        );
    }

    /** The packed row: a cell for each token of the budget, its position below, and a dot where a token is chosen. */
    function packed({ budget }, { row }, width) {
        const size = Math.min(36, (width - LEFT - 4) / budget);
        const tokens = row.flatMap(([name, start, count, decode, chooses]) =>
            Array.from({ length: count }, (_, k) => ({
                name, decode, position: start + k, chosen: chooses && k === count - 1,
            })));
        return Array.from({ length: budget }, (_, k) => {
            const [x, y, token] = [LEFT + k * size, PLACES.step, tokens[k]];
            if (!token) return cell("box-off", x, y, size - 2, "");
            const label = token.decode ? token.name.toLowerCase() : token.name;
            const dot = `<circle class="head" cx="${round(x + size / 2 - 1)}" cy="${y - CELL / 2 - 7}" r="3.5"/>`;
            return cell(kind(token.name), x, y, size - 2, label, token.position) + (token.chosen ? dot : "");
        }).join("");
    }

    /** The known tokens of a request in its blocks: computed ones are filled, those of this step have a bar. */
    function lane({ block }, { row }, [name, known, computed, , blocks], number, width) {
        const y = PLACES.runs + number * LANE;
        const size = (Math.min(width, 560) - LEFT - 22 - 4 * (LONGEST / block)) / LONGEST;
        const x = (position) => LEFT + 22 + position * size + 4 * Math.floor(position / block);
        const mine = row.find(([other]) => other === name);
        const [from, to] = mine ? [mine[1], mine[1] + mine[2]] : [0, 0];
        const cells = Array.from({ length: known }, (_, k) =>
            box(`${k < computed || (k >= from && k < to) ? kind(name) : "box"} fine`, x(k), y - 8, size, 16) +
            (k >= from && k < to ? box("head", x(k) + 1, y + 3, size - 2, 4) : ""));
        const names = blocks.map((each, k) => text("label tiny", x(k * block) + (block * size) / 2, y + 17, each));
        return text("label-start small strong", LEFT, y, name) + cells.join("") + names.join("");
    }

    /** The pool: who uses each block; dashed is a block that nobody uses and that can be found. */
    function pool({ blocks }, { running, cached }, width) {
        const size = Math.min(44, (width - LEFT - 4) / blocks);
        return Array.from({ length: blocks }, (_, block) => {
            const users = running.filter((request) => request[4].includes(block)).map(([name]) => name);
            const style = users.length ? kind(users[0]) : cached.includes(block) ? "box-off" : "box";
            return cell(style, LEFT + block * size, PLACES.blocks, size - 3, users.join("") || "", block);
        }).join("");
    }

    /** Day 4.5: a row of blocks per level, each with the name of its text, and an arrow for the copy of this step. */
    function levels({ levels }, { rows, copy }, width) {
        const size = Math.min(64, (width - LEFT - 4) / Math.max(...rows.map((row) => row.length)));
        const at = ([level, slot]) => [LEFT + slot * size + (size - 3) / 2, 14 + LEVEL * levels.indexOf(level)];
        const cells = rows.flatMap((row, k) => row.map((name, slot) => {
            const style = name ? kind(name[0]) : "box";
            return cell(style, LEFT + slot * size, 14 + LEVEL * k, size - 3, name, slot);
        }));
        const labels = levels.map((level, k) => text("label-start small", 0, 14 + LEVEL * k, level));
        return labels.join("") + cells.join("") + (copy.length ? arrow(...copy.map(at)) : "");
    }

    /** From the edge of one cell to that of another, in another row; below each cell is its number. */
    function arrow([x, y], [toX, toY]) {
        const way = Math.sign(toY - y);
        const edge = (down) => CELL / 2 + (down ? 17 : 0);
        const [start, tip] = [y + way * edge(way > 0), toY - way * edge(way < 0)];
        const neck = tip - 7 * way;
        const head = `M${round(toX - 4)} ${neck}L${round(toX)} ${tip}L${round(toX + 4)} ${neck}Z`;
        return `<path class="line" d="M${round(x)} ${start}L${round(toX)} ${neck}"/><path class="head" d="${head}"/>`;
    }

    /** The picture of a step, `width` pixels wide. */
    function draw(story, index, width) {
        const step = story.steps[index];
        const label = `role="img" aria-label="Step ${index + 1}: ${step.said}"`;
        if (story.levels) {
            const height = LEVEL * (story.levels.length - 1) + 44;
            return `<svg viewBox="0 0 ${width} ${height}" ${label}>${levels(story, step, width)}</svg>`;
        }
        const names = { waits: "waits", step: "the step", runs: "runs", blocks: "blocks" };
        const labels = Object.entries(names).map(([row, name]) => text("label-start small", 0, PLACES[row], name));
        const waiting = [...step.waiting].map((name, k) => cell(kind(name), LEFT + k * 34, PLACES.waits, 30, name));
        return (
            `<svg viewBox="0 0 ${width} ${PLACES.blocks + 36}" ${label}>` +
            labels.join("") +
            (waiting.join("") || text("label-start small", LEFT, PLACES.waits, "nobody")) +
            packed(story, step, width) +
            step.running.map((request, number) => lane(story, step, request, number, width)).join("") +
            pool(story, step, width) +
            "</svg>"
        );
    }

    function start(place) {
        if (place.classList.contains("live")) return; // the page for printing loads this file once for each widget
        const { element, fitted, status } = widgetParts;
        const story = JSON.parse(place.querySelector("script[type='application/json']").textContent);
        const picture = place.querySelector("figure > div");
        const [back, next] = ["Back", "Next"].map((label) => element("button", { type: "button" }, label));
        const counter = element("output", {});
        const { said, set } = status();
        let index = story.start;

        function update(width) {
            picture.innerHTML = draw(story, index, width); // made of the story's letters and numbers
            counter.textContent = `step ${index + 1} of ${story.steps.length}`;
            back.disabled = index === 0;
            next.disabled = index === story.steps.length - 1;
            set(story.steps[index].said);
        }

        let redraw = () => {};
        const move = (by) => {
            index = Math.min(Math.max(index + by, 0), story.steps.length - 1);
            redraw();
        };
        back.addEventListener("click", () => move(-1));
        next.addEventListener("click", () => move(1));
        place.addEventListener("keydown", (event) => {
            const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
            if (!by) return;
            event.stopPropagation(); // mdBook turns pages by these keys
            move(by);
        });
        place.prepend(element("div", { class: "steps", role: "group", "aria-label": "Steps" }, back, next, counter), said);
        place.classList.add("live");
        redraw = fitted(place, update);
    }

    if (typeof document !== "undefined") document.querySelectorAll(".step-player").forEach(start);
    return { draw };
})();
