"""A TCP connection over loopback that a test may cut, freeze, slow down, or lead to another port."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

TICK_S = 0.02


class Link:
    """Passes connections to its own ``port`` on to ``target`` until :meth:`stop`.

    ``frozen`` holds only the connections that are there when :meth:`freeze` is called; later ones pass, as after a
    router that forgot its table. ``accepted`` counts connections.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.latency_s = 0.0
        self.accepted = 0
        self._cut_after: int | None = None
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._threads: list[threading.Thread] = []
        self._timers: list[threading.Timer] = []
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        # Bound as long as the link is there, so that nobody else gets the port while nothing listens on it.
        self._reserved = _bound(0)
        self.port = int(self._reserved.getsockname()[1])
        self.allow()

    def stop(self) -> None:
        """End every connection and thread."""
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self.refuse()
        self.thaw()
        self.cut()
        for thread in self._threads:
            thread.join(timeout=20)
            assert not thread.is_alive(), thread
        self._reserved.close()

    def cut(self) -> None:
        """Reset every connection, both ways; on return nothing passes any more."""
        pairs = list(self._pairs)
        for pair in pairs:
            pair.dead.set()
        for pair in pairs:
            assert pair.gone.wait(20)

    def refuse(self) -> None:
        """Nothing listens any more; present connections stay, one that is just being accepted among them."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._accepting is not None:
            self._accepting.join(timeout=20)
            assert not self._accepting.is_alive()

    def allow(self) -> None:
        """Listen, on the same port as before."""
        listener = _bound(self.port)
        listener.listen(16)
        self._listener = listener
        self._accepting = self._start(self._accept, listener)

    def cut_for(self, seconds: float) -> None:
        """Cut all and refuse new connections for a while."""
        self.refuse()
        self.cut()
        timer = threading.Timer(seconds, self.allow)
        self._timers.append(timer)
        timer.start()

    def cut_after(self, count: int) -> None:
        """Reset, once, the connection on which the ``count``-th byte from now goes towards the target."""
        with self._lock:
            self._cut_after = count

    def freeze(self) -> None:
        """No byte passes on the present connections until :meth:`thaw`; neither side is told."""
        for pair in list(self._pairs):
            pair.flows.clear()

    def thaw(self) -> None:
        """Let frozen connections go on."""
        for pair in list(self._pairs):
            pair.flows.set()

    def _start(self, target: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                near.close()
                continue
            pair = _Pair(near, far)
            self._pairs.append(pair)
            self._start(self._carry, pair)

    def _carry(self, pair: _Pair) -> None:
        back = self._start(self._pump, pair, pair.far, pair.near)
        self._pump(pair, pair.near, pair.far)
        back.join()
        pair.close()
        self._pairs.remove(pair)

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not pair.dead.is_set():
                try:
                    data = source.recv(1 << 14)
                except TimeoutError:
                    continue
                if not data:
                    break
                if self.latency_s:
                    time.sleep(self.latency_s)
                data, is_last = self._count(data) if source is pair.near else (data, False)
                while data and not pair.dead.is_set():
                    if pair.flows.wait(TICK_S):
                        with contextlib.suppress(TimeoutError):
                            data = data[sink.send(data) :]
                if is_last:
                    break
        pair.dead.set()

    def _count(self, data: bytes) -> tuple[bytes, bool]:
        """What may still pass of ``data``, and whether the cut that :meth:`cut_after` asked for is due then."""
        with self._lock:
            if self._cut_after is None:
                return data, False
            passing = data[: self._cut_after]
            self._cut_after = self._cut_after - len(passing) or None
            return passing, self._cut_after is None


def _bound(port: int) -> socket.socket:
    """A socket at this port of loopback; several may be as long as one of them at most listens."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


class _Pair:
    """Both ends of one connection. ``dead`` ends it with a reset."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near = near
        self.far = far
        self.dead = threading.Event()
        self.gone = threading.Event()
        self.flows = threading.Event()
        self.flows.set()
        for end in (near, far):
            end.settimeout(TICK_S)

    def close(self) -> None:
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
        self.gone.set()
