// Runs before the page is drawn, so that the chosen colours are there from the first moment.
(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");
  try {
    var held = localStorage.getItem("theme");
    if (held === "dark" || held === "light") { root.dataset.theme = held; }
  } catch (ignored) { /* storage may be closed to us */ }
})();
