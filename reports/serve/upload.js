// Uploads: files are sent in pieces that can be repeated, so a broken connection or a closed page costs one piece.
(function () {
  "use strict";
  var form = document.getElementById("upload");
  var drop = document.getElementById("drop");
  var list = document.getElementById("uploads");
  var files = document.getElementById("files");
  var folder = document.getElementById("folder");
  var call = window.forensics.call;
  var PIECE = Number(form.dataset.piece);
  var MANY = 20;
  var BLOCK = 512;
  var RETRY_MS = [500, 1000, 2000, 4000, 8000, 15000, 30000];
  var underway = 0;

  function words(bytes) {
    var units = ["B", "kB", "MB", "GB", "TB"];
    var n = 0;
    while (bytes >= 1000 && n < 4) { bytes /= 1000; n += 1; }
    return (n && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)) + " " + units[n];
  }

  // A folder or many files travel as one tar that is put together from references: nothing is read before it is sent.
  function encode(text) { return new TextEncoder().encode(text); }
  function octal(number, width) { return number.toString(8).padStart(width - 1, "0") + "\0"; }
  function header(name, size, time, type) {
    var block = new Uint8Array(BLOCK);
    function put(at, text) { block.set(encode(text), at); }
    block.set(encode(name).slice(0, 100), 0);
    put(100, octal(420, 8)); put(108, octal(0, 8)); put(116, octal(0, 8));
    put(124, octal(Math.min(size, 8589934591), 12)); put(136, octal(Math.max(0, Math.floor(time / 1000)), 12));
    put(148, "        "); put(156, type); put(257, "ustar\0" + "00");
    var sum = block.reduce(function (total, value) { return total + value; }, 0);
    put(148, sum.toString(8).padStart(6, "0") + "\0 ");
    return block;
  }
  function record(key, value) {
    var rest = encode(" " + key + "=" + value + "\n").length;
    var length = rest + String(rest).length;
    if (String(length).length !== String(rest).length) { length = rest + String(length).length; }
    return length + " " + key + "=" + value + "\n";
  }
  function padding(size) { return new Uint8Array((BLOCK - size % BLOCK) % BLOCK); }
  function tar(entries) {
    var parts = [];
    entries.forEach(function (entry) {
      var name = entry.path;
      var size = entry.file.size;
      var more = (encode(name).length > 100 || /[^\x20-\x7e]/.test(name) ? record("path", name) : "") + (size > 8589934591 ? record("size", size) : "");
      if (more) {
        var extra = encode(more);
        parts.push(header("PaxHeader", extra.length, 0, "x"), extra, padding(extra.length));
      }
      parts.push(header(name, size, entry.file.lastModified, "0"), entry.file, padding(size));
    });
    parts.push(new Uint8Array(2 * BLOCK));
    return new Blob(parts);
  }

  // What is sent: at most a few files under their names, else one tar.
  function bundle(entries) {
    var nested = entries.some(function (entry) { return entry.path.indexOf("/") >= 0; });
    if (!nested && entries.length <= MANY) {
      return { label: entries.length === 1 ? entries[0].path : entries.length + " files", parts: entries.map(function (entry) { return { name: entry.path, blob: entry.file }; }) };
    }
    var top = entries[0].path.split("/")[0];
    var same = nested && entries.every(function (entry) { return entry.path.split("/")[0] === top; });
    return { label: (same ? top : "files") + " (" + entries.length + " files)", parts: [{ name: (same ? top : "files") + ".tar", blob: tar(entries) }] };
  }

  // The same files chosen again after a reload go on where they stopped.
  function keyOf(parts, entries) {
    return "upload:" + parts.map(function (part) { return part.name + ":" + part.blob.size; }).join("|").slice(0, 400) + ":" + entries.reduce(function (sum, entry) { return (sum * 31 + entry.file.lastModified) % 2147483647; }, 7);
  }
  function remember(key, value) { try { if (value) { localStorage.setItem(key, value); } else { localStorage.removeItem(key); } } catch (ignored) { /* then it cannot be resumed after a reload */ } }
  function recall(key) { try { return localStorage.getItem(key); } catch (ignored) { return null; } }

  function Card(label) {
    var item = document.createElement("li");
    item.className = "upload";
    var name = document.createElement("span");
    name.className = "name";
    name.textContent = label;
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = "Cancel";
    button.setAttribute("aria-label", "Cancel the upload of " + label);
    var bar = document.createElement("progress");
    bar.setAttribute("aria-label", "Upload of " + label);
    var said = document.createElement("p");
    said.className = "said";
    said.setAttribute("role", "status");
    item.append(name, button, bar, said);
    list.append(item);
    this.item = item; this.bar = bar; this.said = said; this.button = button;
  }
  Card.prototype.show = function (done, total, text) { this.bar.max = Math.max(1, total); this.bar.value = done; this.said.textContent = text; };
  Card.prototype.fail = function (text) {
    var item = this.item;
    item.classList.add("bad");
    this.bar.remove();
    this.said.setAttribute("role", "alert");
    this.said.textContent = text;
    this.button.textContent = "Dismiss";
    this.button.onclick = function () { item.remove(); };
  };

  function send(url, blob, job, onProgress) {
    return new Promise(function (resolve, reject) {
      var request = new XMLHttpRequest();
      job.request = request;
      request.open("PUT", url);
      request.setRequestHeader("Content-Type", "application/octet-stream");
      request.upload.onprogress = function (event) { onProgress(event.loaded); };
      request.onload = function () {
        var data = null;
        try { data = JSON.parse(request.responseText); } catch (ignored) { data = null; }
        if (request.status === 200 && data) { resolve(data); return; }
        var problem = new Error(data && data.error ? data.error : "the service answered " + request.status);
        problem.status = request.status; problem.data = data;
        reject(problem);
      };
      request.onerror = request.ontimeout = function () { reject(new Error("the connection broke")); };
      request.onabort = function () { var problem = new Error("cancelled"); problem.cancelled = true; reject(problem); };
      request.timeout = 600000;
      request.send(blob);
    });
  }
  function pause(ms) { return new Promise(function (resolve) { setTimeout(resolve, ms); }); }

  async function start(key, chosen, title, job) {
    var held = recall(key);
    if (held) {
      try { return await call("GET", "/api/uploads/" + held); } catch (problem) { if (problem.status !== 404) { throw problem; } }
    }
    var upload = await call("POST", "/api/uploads", { title: title || null, job: job || null, files: chosen.parts.map(function (part) { return { name: part.name, bytes: part.blob.size }; }) });
    remember(key, upload.id);
    return upload;
  }

  async function run(entries) {
    var chosen = bundle(entries);
    var total = chosen.parts.reduce(function (sum, part) { return sum + part.blob.size; }, 0);
    var title = document.getElementById("title").value.trim();
    var jobName = document.getElementById("job").value.trim();
    var card = new Card(chosen.label);
    if (!total) { card.fail("There is nothing in it: the files are empty."); return; }
    if (total > Number(form.dataset.most)) { card.fail("It has " + words(total) + "; this service takes " + words(Number(form.dataset.most)) + " at most."); return; }
    var state = { stopped: false, request: null, upload: null };
    var key = keyOf(chosen.parts, entries);
    card.button.onclick = function () {
      state.stopped = true;
      if (state.request) { state.request.abort(); }
    };
    card.show(0, total, "Starting …");
    underway += 1;
    try {
      var upload = state.upload = await start(key, chosen, title, jobName);
      var sent = upload.files.map(function (file) { return file.received; });
      var before = sent.reduce(function (a, b) { return a + b; }, 0);
      var began = performance.now();
      var tell = function (extra) {
        var done = sent.reduce(function (a, b) { return a + b; }, 0) + extra;
        var seconds = (performance.now() - began) / 1000;
        var rate = seconds > 0.5 ? (done - before) / seconds : 0;
        var left = rate > 0 ? (total - done) / rate : 0;
        card.show(done, total, words(done) + " of " + words(total) + (rate ? ", " + words(rate) + "/s" : "") + (left > 5 ? ", " + (left > 90 ? Math.ceil(left / 60) + " min" : Math.ceil(left) + " s") + " left" : ""));
      };
      for (var n = 0; n < chosen.parts.length; n += 1) {
        var tries = 0;
        while (sent[n] < chosen.parts[n].blob.size) {
          if (state.stopped) { throw Object.assign(new Error("cancelled"), { cancelled: true }); }
          try {
            var piece = chosen.parts[n].blob.slice(sent[n], sent[n] + PIECE);
            var answer = await send("/api/uploads/" + upload.id + "/files/" + n + "?offset=" + sent[n], piece, state, tell);
            sent[n] = answer.received;
            tries = 0;
            tell(0);
          } catch (problem) {
            var again = !problem.status || problem.status === 408 || problem.status === 409 || problem.status === 503;
            if (problem.cancelled || !again || tries >= RETRY_MS.length) { throw problem; }
            card.said.textContent = "The connection broke; trying again …";
            await pause(RETRY_MS[tries]);
            tries += 1;
            try { sent[n] = (await call("GET", "/api/uploads/" + upload.id)).files[n].received; } catch (lost) { if (lost.status === 404) { throw lost; } }
          }
        }
      }
      card.show(total, total, "Uploaded; queueing …");
      var incident = await call("POST", "/api/uploads/" + upload.id + "/finish");
      remember(key, null);
      underway -= 1;
      if (!underway) { location.href = incident.url; return; }
      card.item.remove();
    } catch (problem) {
      underway -= 1;
      if (problem.cancelled) {
        remember(key, null);
        if (state.upload) { await pause(200); call("DELETE", "/api/uploads/" + state.upload.id).catch(function () { /* it expires by itself */ }); }
        card.item.remove();
        window.forensics.say("The upload was cancelled.");
        return;
      }
      if (problem.status === 404) { remember(key, null); }
      card.fail("Not uploaded: " + problem.message + (problem.status ? "." : ". Choose the same files again to go on where it stopped."));
    }
  }

  function take(entries) {
    entries = entries.filter(function (entry) { return !/(^|\/)(\.DS_Store|Thumbs\.db)$/.test(entry.path); });
    if (!entries.length) { window.forensics.say("There is no file in it."); return; }
    if (entries.length > 200000) { window.forensics.say("That is too many files; pack them first."); return; }
    run(entries);
  }
  function fromInput(input) {
    take(Array.prototype.map.call(input.files, function (file) { return { path: file.webkitRelativePath || file.name, file: file }; }));
    input.value = "";
  }

  // Dropped folders are walked; a browser hands out a hundred entries at a time.
  function read(reader) {
    return new Promise(function (resolve, reject) { reader.readEntries(resolve, reject); }).then(function (some) {
      return some.length ? read(reader).then(function (more) { return some.concat(more); }) : [];
    });
  }
  async function walk(entry, path) {
    if (entry.isFile) {
      return [{ path: path + entry.name, file: await new Promise(function (resolve, reject) { entry.file(resolve, reject); }) }];
    }
    var out = [];
    var children = await read(entry.createReader());
    for (var n = 0; n < children.length; n += 1) { out = out.concat(await walk(children[n], path + entry.name + "/")); }
    return out;
  }

  document.getElementById("pick").addEventListener("click", function () { files.click(); });
  document.getElementById("pick-folder").addEventListener("click", function () { folder.click(); });
  files.addEventListener("change", function () { fromInput(files); });
  folder.addEventListener("change", function () { fromInput(folder); });
  form.addEventListener("submit", function (event) { event.preventDefault(); files.click(); });

  var depth = 0;
  function carries(event) { return event.dataTransfer && Array.prototype.indexOf.call(event.dataTransfer.types, "Files") >= 0; }
  document.addEventListener("dragenter", function (event) { if (carries(event)) { depth += 1; drop.classList.add("over"); } });
  document.addEventListener("dragleave", function () { depth = Math.max(0, depth - 1); if (!depth) { drop.classList.remove("over"); } });
  document.addEventListener("dragover", function (event) { if (carries(event)) { event.preventDefault(); event.dataTransfer.dropEffect = "copy"; } });
  document.addEventListener("drop", function (event) {
    if (!carries(event)) { return; }
    event.preventDefault();
    depth = 0;
    drop.classList.remove("over");
    var plain = Array.prototype.map.call(event.dataTransfer.files, function (file) { return { path: file.name, file: file }; });
    var entries = Array.prototype.map.call(event.dataTransfer.items || [], function (item) { return item.webkitGetAsEntry ? item.webkitGetAsEntry() : null; }).filter(Boolean);
    if (!entries.some(function (entry) { return entry.isDirectory; })) { take(plain); return; }
    Promise.all(entries.map(function (entry) { return walk(entry, ""); })).then(function (found) {
      take([].concat.apply([], found));
    }, function () { window.forensics.say("The folder cannot be read. Choose it with the button instead."); });
  });
  window.addEventListener("beforeunload", function (event) { if (underway) { event.preventDefault(); } });
})();
