// The bar under the pointer, or the one that the arrow keys have reached, is described below its chart.
for (const timeline of document.querySelectorAll(".timeline")) {
    const say = timeline.querySelector(".say");
    const show = (bar) => { say.textContent = bar.querySelector("title").textContent; };
    timeline.addEventListener("pointerover", (event) => {
        const bar = event.target.closest("rect");
        if (bar) show(bar);
    });
    for (const lane of timeline.querySelectorAll(".lane")) {
        let at = -1;
        const go = (place) => {
            lane.children[at]?.classList.remove("at");
            at = Math.max(0, Math.min(lane.children.length - 1, place));
            lane.children[at].classList.add("at");
            show(lane.children[at]);
        };
        lane.addEventListener("pointerdown", (event) => { at = [...lane.children].indexOf(event.target.closest("rect")); });
        lane.addEventListener("focus", () => go(Math.max(at, 0)));
        lane.addEventListener("blur", () => lane.children[at]?.classList.remove("at"));
        lane.addEventListener("keydown", (event) => {
            const place = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: lane.children.length }[event.key];
            if (place === undefined) return;
            event.preventDefault();
            go(place);
        });
    }
}

// Every chunk size is drawn already: the slider shows one of the drawings. `#chunk=256` in the address chooses one, too.
const slider = document.getElementById("chunk");
const sizes = [...document.querySelectorAll(".size")];
const rows = document.querySelectorAll("#sizes tbody tr");
const choose = (chosen) => {
    sizes.forEach((size, place) => { size.hidden = place !== chosen; });
    rows.forEach((row, place) => row.classList.toggle("chosen", place === chosen));
    document.getElementById("size").textContent = sizes[chosen].dataset.title;
    slider.setAttribute("aria-valuetext", sizes[chosen].dataset.title);
};
const followAddress = () => {
    const place = sizes.findIndex((size) => location.hash === `#chunk=${size.dataset.chunk}`);
    if (place >= 0) slider.value = place;
    choose(Number(slider.value));
};
slider.addEventListener("input", () => choose(Number(slider.value)));
addEventListener("hashchange", followAddress);
followAddress();
