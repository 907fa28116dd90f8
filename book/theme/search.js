"use strict";

// The search knows only what a reader would look for: `search_marks.py` has put marks around screens, the labels of
// drawings, and hints. What is between two marks is dropped, and the index made again, when it is loaded.
(() => {
    if (!window.elasticlunr) return;
    const MARKED = /\ue000[^\ue001]*\ue001/g;
    const FIELDS = ["title", "body", "breadcrumbs"];

    window.elasticlunr.Index.load = (data) => {
        const index = window.elasticlunr(function () {
            this.setRef("id");
            FIELDS.forEach((field) => this.addField(field));
        });
        for (const doc of Object.values(data.documentStore.docs)) {
            index.addDoc({...doc, body: doc.body.replace(MARKED, " ")});
        }
        return index;
    };
})();
