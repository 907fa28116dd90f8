"use strict";

// A signature that differs between the ports has a tab for each. The choice holds for all signatures of all pages.
(() => {
    const KEY = "tiny-llm-port";
    const groups = [...document.querySelectorAll(".port-tabs")];

    function remembered() {
        try {
            return localStorage.getItem(KEY);
        } catch { // a browser that keeps nothing
            return null;
        }
    }

    function remember(port) {
        try {
            localStorage.setItem(KEY, port);
        } catch { // likewise
        }
    }

    function choose(port) {
        for (const group of groups) {
            for (const tab of group.querySelectorAll("[role=tab]")) {
                const chosen = tab.textContent === port;
                tab.setAttribute("aria-selected", chosen);
                tab.tabIndex = chosen ? 0 : -1;
                document.getElementById(tab.getAttribute("aria-controls")).hidden = !chosen;
            }
        }
    }

    // What was clicked stays where it was on the screen, although signatures above it may change their height.
    function chooseAt(tab) {
        const before = tab.getBoundingClientRect().top;
        choose(tab.textContent);
        remember(tab.textContent);
        scrollBy({top: tab.getBoundingClientRect().top - before, behavior: "instant"});
    }

    function onKey(event) {
        if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
        event.preventDefault();
        event.stopPropagation(); // mdBook would turn the page
        const other = event.target.previousElementSibling ?? event.target.nextElementSibling;
        chooseAt(other);
        other.focus();
    }

    function makeTabs(group, number) {
        const list = document.createElement("div");
        list.setAttribute("role", "tablist");
        list.setAttribute("aria-label", "Port");
        for (const panel of group.querySelectorAll("[data-port]")) {
            panel.id = `port-${number}-${panel.dataset.port}`;
            panel.setAttribute("role", "tabpanel");
            const tab = document.createElement("button");
            tab.type = "button";
            tab.textContent = panel.dataset.port;
            tab.setAttribute("role", "tab");
            tab.setAttribute("aria-controls", panel.id);
            tab.addEventListener("click", () => chooseAt(tab));
            tab.addEventListener("keydown", onKey);
            list.append(tab);
        }
        group.prepend(list);
    }

    groups.forEach(makeTabs);
    const ports = new Set(groups.flatMap((group) => [...group.querySelectorAll("[data-port]")].map((e) => e.dataset.port)));
    const port = remembered();
    choose(ports.has(port) ? port : [...ports][0]);
})();
