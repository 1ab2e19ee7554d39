// Runs before the plotting library, so that it keeps to the page's policy: style attributes are set through the object
// model, which the policy allows, and the style sheet for maps, which no figure here uses, is not added.
(function () {
  "use strict";
  var set = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style" && this.style) {
      this.style.cssText = value;
    } else {
      set.call(this, name, value);
    }
  };
  var add = document.head.appendChild;
  document.head.appendChild = function (node) {
    return node.tagName === "STYLE" && node.textContent ? node : add.call(document.head, node);
  };
})();
