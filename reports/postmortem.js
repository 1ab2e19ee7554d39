// Copying, filtering, links that open what they point at, light and dark, figures, and the author's notes. The page reads well without it.
(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");

  function each(selector, act, within) {
    Array.prototype.forEach.call((within || document).querySelectorAll(selector), act);
  }

  // --- copying -------------------------------------------------------------------------------------------------
  function copyText(text, done) {
    function old() {
      var area = document.createElement("textarea");
      area.value = text;
      area.setAttribute("aria-label", "Text to copy");
      document.body.appendChild(area);
      area.select();
      var copied = false;
      try { copied = document.execCommand("copy"); } catch (ignored) { copied = false; }
      area.remove();
      done(copied);
    }
    if (navigator.clipboard && window.isSecureContext) {
      navigator.clipboard.writeText(text).then(function () { done(true); }, old);
    } else {
      old();
    }
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest ? event.target.closest(".copy") : null;
    if (!button) { return; }
    event.preventDefault();
    var fragment = button.getAttribute("data-link");
    var before = fragment ? "Copy link" : "Copy";
    copyText(fragment ? location.href.split("#")[0] + "#" + fragment : button.getAttribute("data-copy"), function (copied) {
      button.textContent = copied ? "Copied" : "Press Ctrl+C";
      setTimeout(function () { button.textContent = before; }, 1600);
    });
  });

  // --- filters: every word must occur --------------------------------------------------------------------------
  var MOST = 200;

  // Rows beyond those in the page: packed by column, unpacked at the first search.
  function unpack(element) {
    var columns = JSON.parse(element.textContent);
    var lower = columns.map(function (c) { return c.words.map(function (w) { return w.toLowerCase(); }); });
    var texts = [];
    for (var n = 0; n < (columns.length ? columns[0].at.length : 0); n += 1) {
      var words = lower.map(function (own, c) { return own[columns[c].at[n]]; });
      texts.push("rank" + words.join(" "));
    }
    return { columns: columns, texts: texts };
  }

  function rowOf(packed, n) {
    var row = document.createElement("tr");
    packed.columns.forEach(function (column) {
      var cell = document.createElement("td");
      var at = column.at[n];
      if (column.kind === "num") { cell.className = "num"; }
      var place = cell;
      if (column.states.length && column.words[at]) {
        place = cell.appendChild(document.createElement("span"));
        place.className = "state t-" + column.states[at];
      } else if (column.kind === "code" && column.words[at]) {
        place = cell.appendChild(document.createElement("code"));
      }
      place.textContent = column.words[at];
      row.appendChild(cell);
    });
    return row;
  }

  each("[data-filter]", function (input) {
    var name = input.getAttribute("data-filter");
    var holder = document.querySelector('[data-filtered="' + name + '"]');
    var items = holder.querySelectorAll("[data-search]");
    var output = input.parentNode.querySelector("output");
    var beyond = document.querySelector('[data-rows="' + name + '"]');
    var packed = null;
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      function fits(text) { return words.every(function (word) { return text.indexOf(word) >= 0; }); }
      each(".found", function (row) { row.remove(); }, holder);
      if (beyond && words.length) {
        packed = packed || unpack(beyond);
        var found = [];
        packed.texts.forEach(function (text, n) { if (fits(text)) { found.push(n); } });
        Array.prototype.forEach.call(items, function (item) { item.hidden = true; });
        found.slice(0, MOST).forEach(function (n) {
          var row = rowOf(packed, n);
          row.className = "found";
          holder.tBodies[0].appendChild(row);
        });
        output.textContent = found.length + " of " + packed.texts.length + (found.length > MOST ? ", the first " + MOST + " shown" : "");
        return;
      }
      var shown = 0;
      Array.prototype.forEach.call(items, function (item) {
        item.hidden = !fits(item.getAttribute("data-search"));
        shown += item.hidden ? 0 : 1;
      });
      output.textContent = words.length ? shown + " of " + items.length : "";
    });
  });

  // "/" goes to the findings' filter, as in many pages.
  document.addEventListener("keydown", function (event) {
    var field = document.getElementById("find-finding");
    if (event.key !== "/" || !field || event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA/.test(event.target.tagName)) { return; }
    event.preventDefault();
    field.focus();
  });

  // --- links open what they point at ---------------------------------------------------------------------------
  function reveal() {
    var target = null;
    try { target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null; } catch (ignored) { return; }
    for (var node = target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") { node.open = true; node.hidden = false; }
    }
    each(".target", function (old) { old.classList.remove("target"); });
    if (target && target.tagName === "DETAILS") {
      target.classList.add("target");
      target.scrollIntoView({ behavior: "instant" });
    }
  }
  window.addEventListener("hashchange", reveal);
  document.addEventListener("click", function (event) {
    var link = event.target.closest ? event.target.closest('a[href^="#"]') : null;
    if (link && link.getAttribute("href") === location.hash) { reveal(); }
  });

  // --- where the reader is -------------------------------------------------------------------------------------
  if (window.IntersectionObserver) {
    var links = {};
    each(".contents a", function (link) { links[link.getAttribute("href").slice(1)] = link; });
    var seen = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        var link = links[entry.target.id];
        if (link && entry.isIntersecting) {
          each(".contents a[aria-current]", function (old) { old.removeAttribute("aria-current"); });
          link.setAttribute("aria-current", "true");
        }
      });
    }, { rootMargin: "0px 0px -75% 0px" });
    each("main h2[id]", function (heading) { seen.observe(heading); });
  }

  // --- figures: data from the report, looks from the one theme -------------------------------------------------
  var onPaper = false;
  function dark() {
    if (onPaper) { return false; }
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  var themes = document.getElementById("plot-themes");
  themes = themes ? JSON.parse(themes.textContent) : null;

  function draw() {
    if (!window.Plotly || !themes) { return; }
    var theme = themes[dark() ? "dark" : "light"];
    each("[data-plot]", function (canvas) {
      var figure = JSON.parse(document.getElementById("plot-" + canvas.getAttribute("data-plot")).textContent);
      figure.layout.template = theme;
      figure.data.forEach(function (trace) {
        var known = typeof trace.meta === "string" && trace.meta in themes.meanings;
        if (known) { trace.marker = Object.assign({ color: theme.layout.colorway[themes.meanings[trace.meta]] }, trace.marker); }
      });
      window.Plotly.react(canvas, figure.data, figure.layout, { responsive: true, displayModeBar: false });
    });
  }

  document.getElementById("theme").addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // --- paper: everything open, figures on white ----------------------------------------------------------------
  var closed = [];
  window.addEventListener("beforeprint", function () {
    closed = [];
    each("details:not([open])", function (item) { closed.push(item); item.open = true; });
    onPaper = true;
    draw();
  });
  window.addEventListener("afterprint", function () {
    closed.forEach(function (item) { item.open = false; });
    onPaper = false;
    draw();
  });
  document.getElementById("print").addEventListener("click", function () { window.print(); });

  // --- the author's notes: a new file with what was typed, and nothing of what the script did to the page -------
  var unsaved = false;
  each("textarea", function (area) { area.addEventListener("input", function () { unsaved = true; }); });
  window.addEventListener("beforeunload", function (event) { if (unsaved) { event.preventDefault(); } });

  function save() {
    var copy = root.cloneNode(true);
    var typed = document.querySelectorAll("textarea");
    each("textarea", function (area, n) { area.textContent = typed[n].value; }, copy);
    each(".found", function (row) { row.remove(); }, copy);
    each("[data-search]", function (item) { item.hidden = false; }, copy);
    each(".canvas", function (canvas) { canvas.textContent = ""; canvas.className = "canvas"; canvas.removeAttribute("style"); }, copy);
    each("head style", function (style, n) { if (n > 0) { style.remove(); } }, copy);
    each("#js-plotly-tester, .plotly-notifier", function (leftover) { leftover.remove(); }, copy);
    each(".copy", function (button) { button.textContent = button.hasAttribute("data-link") ? "Copy link" : "Copy"; }, copy);
    each(".target", function (item) { item.classList.remove("target"); }, copy);
    each("[aria-current]", function (link) { link.removeAttribute("aria-current"); }, copy);
    each("output", function (output) { output.textContent = ""; }, copy);
    copy.classList.remove("js");
    copy.removeAttribute("data-theme");
    var blob = new Blob(["<!doctype html>\n" + copy.outerHTML + "\n"], { type: "text/html" });
    var link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = "postmortem-annotated.html";
    link.click();
    unsaved = false;
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 10000);
  }
  each(".save", function (button) { button.addEventListener("click", save); });

  draw();
  reveal();
})();
