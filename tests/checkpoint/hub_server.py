"""A server on the loopback that speaks the protocol of the Hugging Face hub, with faults to order.

It has the routes that `huggingface_hub` uses: information about a repository, its tree, files with
their digests in headers, ranges, redirects to the storage of large files, and uploads.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

LARGE = (".h5", ".safetensors", ".bin", ".npz", ".data-00000-of-00001")
TOKEN = "hf_right"


def git_digest(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubServer:
    """A hub. Use it in a `with` statement.

    Attributes:
        url: str. The endpoint.
        repos: dict. Maps names to `{revision: {path: bytes}}`.
        private: set of names of repositories that need `TOKEN`.
        gated: set of names of repositories with conditions to accept.
        log: list of `(method, path, range)` of the requests.
        cut: dict. Maps names of files to how many bytes are sent, once, before the connection ends.
        wrong: set of names of files whose content is not that of their digest.
        lost: set of names of files that are listed, but not there.
        failing: int or None. A status that answers every request.
    """

    def __init__(self):
        self.repos, self.private, self.gated, self.log = {}, set(), set(), []
        self.cut, self.wrong, self.lost, self.failing = {}, set(), set(), None
        self.objects = {}

    def add(self, name, folder, revision="main"):
        """Publishes a folder as a revision of a repository."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        self.repos.setdefault(name, {})[revision] = files

    def fetched(self):
        """Returns the names of the files whose content was asked for."""
        paths = [path for method, path, _ in self.log if method == "GET"]
        marks = "/resolve/", "/storage/"
        return [
            path.split(mark)[1].split("/", 1)[1] for path in paths for mark in marks if mark in path
        ]

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Ends the server, so that connections are refused."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def commit(self, name, revision):
        """Returns the commit of a revision, and its files; `None` if there is none."""
        for known, files in self.repos[name].items():
            text = json.dumps([name, known, {path: git_digest(x) for path, x in files.items()}])
            commit = hashlib.sha1(text.encode()).hexdigest()
            if revision in (known, commit):
                return commit, files
        return None


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def end_headers(self):
        self.send_header("Connection", "close")  # or a stopped server goes on with its old ones
        super().end_headers()

    def do_HEAD(self):
        self._answer()

    do_GET = do_POST = do_PUT = do_HEAD

    def _answer(self):
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        self.hub.log.append((self.command, path, self.headers.get("Range")))
        length = int(self.headers.get("Content-Length") or 0)
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        self.content = self._chunks() if chunked else self.rfile.read(length)
        if self.hub.failing:
            return self._send(self.hub.failing, b"")
        routes = {
            r"/api/models/(?P<name>[^/]+/[^/]+)(/revision/(?P<revision>.+))?": self._info,
            r"/api/models/(?P<name>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)": self._tree,
            r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)": self._file,
            r"/storage/(?P<digest>\w+)/(?P<file>.+)": self._stored,
            r"/api/repos/create": self._create,
            r"/api/validate-yaml": self._validate,
            r"/api/models/(?P<name>[^/]+/[^/]+)/preupload/(?P<revision>.+)": self._preupload,
            r"/(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch": self._batch,
            r"/upload/(?P<digest>\w+)": self._upload,
            r"/api/models/(?P<name>[^/]+/[^/]+)/commit/(?P<revision>.+)": self._commit,
        }
        # the longer patterns first: a name of a file may look like anything
        for pattern, route in reversed(routes.items()):
            match = re.fullmatch(pattern, path)
            if match is None:
                continue
            options = match.groupdict()
            name = options.get("name")
            if name is not None and not self._may_read(name):
                return None
            return route(**options)
        return self._send(404, b"", {"X-Error-Code": "NotFound"})

    def _chunks(self):
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _may_read(self, name):
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in ("", TOKEN):
            message = "Invalid credentials in Authorization header"
            self._send(401, b"", {"X-Error-Message": message})
            return False
        if name in self.hub.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
            return False
        if name not in self.hub.repos or (name in self.hub.private and token != TOKEN):
            # the hub does not tell strangers which of the two
            status = 404 if token == TOKEN else 401
            self._send(status, b"", {"X-Error-Code": "RepoNotFound"})
            return False
        return True

    def _commit_of(self, name, revision):
        found = self.hub.commit(name, revision or "main")
        if found is None:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        return found

    def _info(self, name, revision=None):
        if found := self._commit_of(name, revision):
            files = [{"rfilename": path} for path in sorted(found[1])]
            self._send_json({"id": name, "sha": found[0], "siblings": files})

    def _tree(self, name, revision):
        if found := self._commit_of(name, revision):
            entries = []
            for path, content in sorted(found[1].items()):
                entry = {"type": "file", "path": path, "size": len(content)}
                entry["oid"] = git_digest(content)
                if path.endswith(LARGE):
                    digest = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
                entries.append(entry)
            self._send_json(entries)

    def _file(self, name, revision, file):
        found = self._commit_of(name, revision)
        if not found:
            return
        commit, files = found
        if file not in files or file in self.hub.lost:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        content = files[file]
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not file.endswith(LARGE):
            self._send_content(file, content, {**headers, "ETag": f'"{git_digest(content)}"'})
            return
        digest = hashlib.sha256(content).hexdigest()
        self.hub.objects[digest] = content
        headers["X-Linked-Etag"], headers["X-Linked-Size"] = f'"{digest}"', str(len(content))
        location = f"http://localhost:{self.hub.port}/storage/{digest}/{file}"  # another host
        self._send(302, b"", {**headers, "Location": location})

    def _stored(self, digest, file):
        self._send_content(file, self.hub.objects[digest], {"ETag": '"of the storage"'})

    def _send_content(self, file, content, headers):
        if file in self.hub.wrong:
            content = bytes([content[0] ^ 1]) + content[1:]
        size, start = len(content), 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            start = int(match[1])
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        self.send_response(206 if start else 200)
        for name, value in {**headers, "Content-Length": str(size - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        content = content[start:]
        cut = self.hub.cut.pop(file, None)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(content[:cut])
            self.wfile.flush()

    # --- uploads

    def _create(self):
        about = json.loads(self.content)
        name = f"{about['organization']}/{about['name']}"
        if name in self.hub.repos:
            return self._send(409, json.dumps({"url": f"{self.hub.url}/{name}"}).encode())
        self.hub.repos[name] = {"main": {}}
        return self._send_json({"url": f"{self.hub.url}/{name}", "id": name})

    def _validate(self):
        self._send_json({"errors": [], "warnings": []})

    def _preupload(self, name, revision):
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in json.loads(self.content)["files"]
        ]
        self._send_json({"files": files})

    def _batch(self, name):
        objects = [
            {**entry, "actions": {"upload": {"href": f"{self.hub.url}/upload/{entry['oid']}"}}}
            for entry in json.loads(self.content)["objects"]
        ]
        self._send_json({"transfer": "basic", "objects": objects})

    def _upload(self, digest):
        is_right = hashlib.sha256(self.content).hexdigest() == digest
        self.hub.objects[digest] = self.content
        self._send(200 if is_right else 400, b"")

    def _commit(self, name, revision):
        files = self.hub.repos[name]["main"]
        for line in self.content.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
        commit = self.hub.commit(name, "main")[0]
        url = f"{self.hub.url}/{name}/commit/{commit}"
        self._send_json({"success": True, "commitOid": commit, "commitUrl": url})

    def _send_json(self, value):
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status, content, headers=None):
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
