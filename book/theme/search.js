"use strict";

// The search knows only what a reader would look for: `search_marks.py` has put marks around screens, the labels of
// drawings, and hints. What is between two marks is dropped, and the index made again, when it is loaded.
// Each entry of the glossary is a result of its own, and a page is found by the terms that it explains.
(() => {
    if (!window.elasticlunr) return;
    const MARKED = /\ue000[^\ue001]*\ue001/g;
    const ENTRY = /\ue002([^\ue002]*)\ue002([^\ue002]*)\ue002([^\ue003]*)\ue003([^\ue002]*)/g;
    const FIELDS = ["title", "body", "breadcrumbs", "terms"];
    const BOOST = 20;  // of a term, beside mdBook's 1 for the body and 2 for a title

    // The entries of the glossary as documents, each with the names of the pages that explain it.
    function entries(glossary, urls) {
        const parts = [...glossary.body.matchAll(ENTRY)];
        return parts.map(([, title, anchor, pages, text], index) => {
            const next = parts[index + 1]?.[1] ?? "";
            const body = text.trim().slice(0, text.trim().length - next.length);
            const id = String(urls.push(`${urls[glossary.id].split("#")[0]}#${anchor}`) - 1);
            const doc = {id, title, body, breadcrumbs: glossary.breadcrumbs, terms: title};
            return {doc, pages: pages.split(" ").filter(Boolean)};
        });
    }

    // Whoever searches for a term gets its entry first, then the pages that explain it.
    function ranked(results, first) {
        const known = new Set(first), byRef = Object.fromEntries(results.map((result) => [result.ref, result]));
        const top = first.map((ref) => byRef[ref]).filter(Boolean);
        return [...top, ...results.filter((result) => !known.has(result.ref))];
    }

    window.elasticlunr.Index.load = (data) => {
        const {doc_urls: urls, search_options: options} = window.search;
        options.fields.terms = {boost: BOOST};
        const index = window.elasticlunr(function () {
            this.setRef("id");
            FIELDS.forEach((field) => this.addField(field));
        });
        const docs = Object.values(data.documentStore.docs);
        const glossary = docs.find((doc) => doc.body.includes("\ue002"));
        const terms = glossary ? entries(glossary, urls) : [];
        const firstOf = {};  // the first section of a page stands for it
        for (const doc of docs) {
            const page = urls[doc.id].split(".html")[0];
            const own = page in firstOf ? [] : terms.filter((term) => term.pages.includes(page));
            firstOf[page] ??= doc.id;
            const body = doc === glossary ? "" : doc.body.replace(MARKED, " ");
            index.addDoc({...doc, body, terms: own.map((term) => term.doc.title).join(" ")});
        }
        const byName = {};
        for (const {doc, pages} of terms) {
            index.addDoc(doc);
            for (const name of doc.title.toLowerCase().split(", ")) {
                byName[name] = [doc.id, ...pages.map((page) => firstOf[page])];
            }
        }
        const search = index.search.bind(index);
        index.search = (query, settings) =>
            ranked(search(query, settings), byName[query.trim().toLowerCase()] ?? []);
        return index;
    };
})();
