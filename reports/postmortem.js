// Comfort only: the page tells everything without it.
(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");

  function each(selector, act, within) {
    Array.prototype.forEach.call((within || document).querySelectorAll(selector), act);
  }

  function copyText(text, done) {
    function old() {
      var area = document.createElement("textarea");
      area.value = text;
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
    copyText(button.getAttribute("data-copy"), function (copied) {
      button.textContent = copied ? "Copied" : "Press Ctrl+C";
      setTimeout(function () { button.textContent = "Copy"; }, 1600);
    });
  });

  // Filters: every word must occur.
  each("[data-filter]", function (input) {
    var items = document.querySelectorAll('[data-filtered="' + input.getAttribute("data-filter") + '"] [data-search]');
    var output = input.parentNode.querySelector("output");
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      var shown = 0;
      Array.prototype.forEach.call(items, function (item) {
        var text = item.getAttribute("data-search");
        item.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
        shown += item.hidden ? 0 : 1;
      });
      output.textContent = words.length ? shown + " of " + items.length : "";
    });
  });

  // A link to a finding opens it.
  function reveal() {
    var target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    if (target && target.tagName === "DETAILS") {
      target.open = true;
      target.hidden = false;
      target.scrollIntoView();
    }
  }
  window.addEventListener("hashchange", reveal);

  document.getElementById("theme").addEventListener("click", function () {
    var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.getElementById("print").addEventListener("click", function () { window.print(); });

  // The author's notes: a new file with what was typed, and nothing of what the script did to the page.
  function save() {
    var copy = root.cloneNode(true);
    var typed = document.querySelectorAll("textarea");
    each("textarea", function (area, n) { area.textContent = typed[n].value; }, copy);
    each("[data-search]", function (item) { item.hidden = false; }, copy);
    each(".canvas", function (canvas) { canvas.textContent = ""; canvas.className = "canvas"; canvas.removeAttribute("style"); }, copy);
    each("head style", function (style, n) { if (n > 0) { style.remove(); } }, copy);
    each("#js-plotly-tester, .plotly-notifier", function (leftover) { leftover.remove(); }, copy);
    each(".copy", function (button) { button.textContent = "Copy"; }, copy);
    each("output", function (output) { output.textContent = ""; }, copy);
    copy.classList.remove("js");
    var blob = new Blob(["<!doctype html>\n" + copy.outerHTML + "\n"], { type: "text/html" });
    var link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = "postmortem-annotated.html";
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 10000);
  }
  each(".save", function (button) { button.addEventListener("click", save); });

  if (window.Plotly) {
    each("[data-plot]", function (canvas) {
      var figure = JSON.parse(document.getElementById("plot-" + canvas.getAttribute("data-plot")).textContent);
      window.Plotly.newPlot(canvas, figure.data, figure.layout, { responsive: true, displayModeBar: false });
    });
  }
  reveal();
})();
