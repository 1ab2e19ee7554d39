// What every page does beyond HTML: colours, live progress, and the buttons that change something.
(function () {
  "use strict";
  var root = document.documentElement;

  function all(selector, within) { return Array.prototype.slice.call((within || document).querySelectorAll(selector)); }
  function one(selector, within) { return (within || document).querySelector(selector); }

  function say(text) {
    var toast = one("#toast");
    toast.textContent = text;
    clearTimeout(say.timer);
    say.timer = setTimeout(function () { toast.textContent = ""; }, 6000);
  }

  // Every call of the pages to the service; the answer's words where it refuses.
  function call(method, url, body) {
    var options = { method: method, headers: { Accept: "application/json" }, credentials: "same-origin" };
    if (body !== undefined) {
      options.headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    return fetch(url, options).then(function (answer) {
      if (answer.status === 401) { location.href = "/login?next=" + encodeURIComponent(location.pathname); }
      return answer.text().then(function (text) {
        var data = null;
        try { data = text ? JSON.parse(text) : null; } catch (ignored) { data = null; }
        if (answer.ok) { return data; }
        var problem = new Error(data && data.error ? data.error : "the service answered " + answer.status);
        problem.status = answer.status;
        problem.data = data;
        throw problem;
      });
    }, function () { throw new Error("the service cannot be reached"); });
  }
  window.forensics = { call: call, say: say };

  // Colours
  var theme = one("#theme");
  if (theme) {
    theme.addEventListener("click", function () {
      var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch (ignored) { /* then for this page only */ }
    });
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest(".copy");
    if (!button) { return; }
    var text = button.getAttribute("data-copy");
    var done = function (worked) {
      button.textContent = worked ? "Copied" : "Press Ctrl+C";
      setTimeout(function () { button.textContent = "Copy"; }, 1600);
    };
    if (navigator.clipboard && window.isSecureContext) {
      navigator.clipboard.writeText(text).then(function () { done(true); }, function () { done(false); });
    } else {
      var range = document.createRange();
      range.selectNodeContents(one("code", button.parentNode));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      done(false);
    }
  });

  // Live progress. A hidden page does not listen: browsers allow few connections to one place.
  var STAGES = { waiting: "Waiting for its turn", starting: "Starting", unpacking: "Unpacking", reading: "Reading sources", judging: "Checking and judging", writing: "Writing the postmortem" };
  function draw(within, progress) {
    if (!within || !progress) { return; }
    var bar = one("[data-bar]", within);
    one("[data-stage]", within).textContent = STAGES[progress.stage] || progress.stage;
    one("[data-count]", within).textContent = progress.total ? progress.done + " of " + progress.total + " sources" : "";
    bar.hidden = progress.stage === "waiting";
    if (progress.total) { bar.max = progress.total; bar.value = progress.done; } else { bar.removeAttribute("value"); }
    var order = all(".stages li");
    var now = order.findIndex(function (item) { return item.dataset.step === (progress.stage === "starting" ? "unpacking" : progress.stage); });
    order.forEach(function (item, n) {
      item.className = n < now ? "past" : n === now ? "now" : "";
      if (n === now) { item.setAttribute("aria-current", "step"); } else { item.removeAttribute("aria-current"); }
    });
  }
  function listen(url, name, act) {
    var source = null;
    function open() {
      if (source || document.hidden) { return; }
      source = new EventSource(url);
      source.addEventListener(name, function (event) { act(JSON.parse(event.data), close); });
      source.addEventListener("deleted", function () { close(); location.href = "/"; });
    }
    function close() { if (source) { source.close(); source = null; } }
    document.addEventListener("visibilitychange", function () { if (document.hidden) { close(); } else { open(); } });
    window.addEventListener("pagehide", close);
    open();
  }

  // The list: progress of rows, and the list anew when an incident comes, goes or changes its state.
  var found = one("#found");
  if (found) {
    var timer = null;
    var refresh = function () {
      clearTimeout(timer);
      timer = setTimeout(function () {
        fetch(location.pathname + location.search, { credentials: "same-origin" }).then(function (answer) { return answer.text(); }).then(function (text) {
          var fresh = new DOMParser().parseFromString(text, "text/html");
          var picked = all("[name=pick]:checked").map(function (box) { return box.value; });
          var focused = document.activeElement && found.contains(document.activeElement) ? document.activeElement.getAttribute("href") || document.activeElement.value : null;
          var content = fresh.querySelector("#found");
          if (!content) { return; }
          found.replaceChildren.apply(found, Array.prototype.slice.call(content.childNodes));
          all("[name=pick]").forEach(function (box) { box.checked = picked.indexOf(box.value) >= 0; });
          if (focused) {
            all("a, input", found).some(function (item) {
              if (item.getAttribute("href") === focused || item.value === focused) { item.focus(); return true; }
              return false;
            });
          }
          choose();
        }, function () { /* the next change tries again */ });
      }, 250);
    };
    listen("/api/events", "change", function (change) {
      var row = one('.row[data-incident="' + change.id + '"]');
      if (row && row.dataset.status === change.status) { draw(row, change.progress); } else { refresh(); }
    });
    var choose = function () {
      var picked = all("[name=pick]:checked");
      var bar = one("#chosen");
      if (!bar) { return; }
      all("[name=pick]").forEach(function (box) { box.disabled = picked.length >= 2 && !box.checked; });
      bar.hidden = !picked.length;
      one("span", bar).textContent = picked.length < 2 ? "Choose one more to compare" : "Two incidents chosen";
      one("button", bar).disabled = picked.length < 2;
    };
    found.addEventListener("change", choose);
    found.addEventListener("click", function (event) {
      if (!event.target.closest("#chosen button")) { return; }
      var picked = all("[name=pick]:checked").map(function (box) { return box.value; });
      // The list is newest first: the older one is what was before.
      location.href = "/compare?before=" + picked[1] + "&after=" + picked[0];
    });
  }

  // One incident
  var incident = one("#incident");
  if (incident) {
    var id = incident.dataset.id;
    var base = "/api/incidents/" + id;
    if (incident.dataset.status === "queued" || incident.dataset.status === "running") {
      listen(base + "/events", "incident", function (state, close) {
        draw(one(".going"), state.progress);
        if (state.status === "done" || state.status === "failed") { close(); location.reload(); }
      });
    }
    var sure = function (title, text, word) {
      var dialog = one("#sure");
      one("#sure-title").textContent = title;
      one("#sure-text").textContent = text;
      one("button[value=yes]", dialog).textContent = word;
      dialog.returnValue = "no";
      dialog.showModal();
      return new Promise(function (resolve) {
        dialog.addEventListener("close", function () { resolve(dialog.returnValue === "yes"); }, { once: true });
      });
    };
    var reload = function () { location.reload(); };
    var actions = {
      cancel: function () { return call("POST", base + "/cancel").then(reload); },
      analyze: function () { return call("POST", base + "/analyze").then(reload); },
      pin: function (button) { return call("PATCH", base, { pinned: button.getAttribute("aria-pressed") !== "true" }).then(reload); },
      drop: function () {
        return sure("Delete the evidence?", "The report stays. The evidence cannot be read again afterwards.", "Delete").then(function (yes) {
          if (yes) { return call("DELETE", base + "/evidence").then(reload); }
        });
      },
      "delete": function () {
        return sure("Delete this incident?", "Its evidence, report and notes are removed for good. Links to it stop working.", "Delete").then(function (yes) {
          if (yes) { return call("DELETE", base).then(function () { location.href = "/"; }); }
        });
      }
    };
    all("[data-do]").forEach(function (button) {
      button.addEventListener("click", function () {
        button.disabled = true;
        actions[button.dataset.do](button).catch(function (problem) { say(problem.message); }).finally(function () { button.disabled = false; });
      });
    });
    one("#note").addEventListener("submit", function (event) {
      event.preventDefault();
      var state = one("#note-state");
      var values = { notes: one("#notes-text").value, title: one("#new-title").value, job: one("#new-job").value || null, revision: Number(incident.dataset.revision) };
      call("PATCH", base, values).then(function (held) {
        incident.dataset.revision = held.revision;
        one("#headline").textContent = held.title;
        state.textContent = "Saved";
      }, function (problem) {
        if (problem.data && problem.data.incident) {
          incident.dataset.revision = problem.data.incident.revision;
          state.textContent = "Somebody else changed this meanwhile. Their notes: “" + problem.data.incident.notes + "”. Save again to replace them with yours.";
        } else {
          state.textContent = problem.message;
        }
      });
    });
  }

  // Settings
  var retention = one("#retention");
  if (retention) {
    retention.addEventListener("submit", function (event) {
      event.preventDefault();
      var values = {};
      all("input", retention).forEach(function (input) { values[input.id] = input.value ? Number(input.value) : null; });
      call("PUT", "/api/settings", values).then(function () { one("#retention-state").textContent = "Saved"; }, function (problem) { one("#retention-state").textContent = problem.message; });
    });
  }
})();
