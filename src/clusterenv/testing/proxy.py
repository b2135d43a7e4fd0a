"""A TCP proxy in user space that does to a connection what networks do: it needs neither root nor a kernel module.

It listens on loopback and passes bytes on to one address, both ways. What it does to them is changed while it runs. It
knows streams of bytes and no packets: "corrupt" and "duplicate" change the stream as no sound TCP would, so they show
whether the layer above notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from clusterenv.errors import ConfigError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

Way: TypeAlias = Literal["up", "down", "both"]
T = TypeVar("T")

LOOPBACK = "127.0.0.1"
_CHUNK = 2**16
_QUEUED = 64  # chunks that wait for their time; then no more is read
_CONNECT_S, _COMMAND_S = 5.0, 10.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of nothing: closing sends a reset


@dataclass(slots=True)
class _Weather:
    """What happens to the bytes of one direction."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    drop: bool = False
    corrupt: int = 0  # how many of the next chunks
    duplicate: int = 0
    reset_after: int | None = None
    passed: int = 0
    stalls: int = 0  # how many ask for one
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def stall(self, more: int) -> None:
        """One more wants that nothing passes, or (-1) no longer does."""
        self.stalls += more
        if self.stalls:
            self.flowing.clear()
        else:
            self.flowing.set()


class FaultProxy:
    """Passes connections on to an address, and hurts them.

    A direction is "up" (from who connects here to the address), "down" (back) or "both".

    Args:
        host: where connections are passed on to.
        port: of the same.
        listen: the port on loopback; 0 for any that is free.
        seed: of the jitter, and of which bit is flipped.

    Attributes:
        port: where it listens.

    Raises:
        LaunchError: it cannot listen there.

    Example:
        >>> with socket.create_server((LOOPBACK, 0)) as server:
        ...     with FaultProxy(LOOPBACK, server.getsockname()[1]) as proxy:
        ...         with socket.create_connection((LOOPBACK, proxy.port), 5.0) as client:
        ...             there, _ = server.accept()
        ...             proxy.corrupt("up")
        ...             client.sendall(b"hello")
        ...             there.recv(5) == b"hello"
        ...             there.close()
        False
    """

    def __init__(self, host: str, port: int, *, listen: int = 0, seed: int = 0) -> None:
        self._target = (host, port)
        self._dice = random.Random(seed)  # noqa: S311 (faults, no secrets)
        self._weather: dict[str, _Weather] = {}
        self._connections: set[_Connection] = set()
        self._accepted, self._refusing = 0, False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._thread.start()
        try:
            self._server = self._ask(self._start, listen)
        except OSError as error:
            self._end_loop()
            raise LaunchError(f"the proxy cannot listen on {LOOPBACK}:{listen}: {error.strerror}.") from error
        self.port: int = self._server.sockets[0].getsockname()[1]

    # The weather.

    def set(
        self,
        way: Way = "both",
        *,
        delay_s: float | None = None,
        jitter_s: float | None = None,
        bytes_per_s: float | None = None,
        drop: bool | None = None,
    ) -> None:
        """Change how a direction carries its bytes; what is None stays as it is.

        Args:
            way: which direction.
            delay_s: every byte arrives this much later.
            jitter_s: and up to this much more, at random. The order stays.
            bytes_per_s: no more than this passes; infinity lifts the limit.
            drop: take bytes and pass none on: to the sender all seems well.
        """
        for name, value in (("delay_s", delay_s), ("jitter_s", jitter_s), ("bytes_per_s", bytes_per_s)):
            if value is not None and not value >= (0 if name != "bytes_per_s" else 1):
                raise ConfigError(f"{name}={value!r} must be at least {0 if name != 'bytes_per_s' else 1}.")
        given = {"delay_s": delay_s, "jitter_s": jitter_s, "bytes_per_s": bytes_per_s, "drop": drop}

        def change(weather: _Weather) -> None:
            for name, value in given.items():
                if value is not None:
                    setattr(weather, name, value)

        self._change(way, change)

    @contextlib.contextmanager
    def stalled(self, way: Way = "both") -> Iterator[None]:
        """Nothing passes within this block, and no connection is closed; what was held back follows afterwards.

        Blocks may lie within each other, or overlap: a direction is free again when the last of them has ended.
        """
        self._change(way, lambda weather: weather.stall(1))
        try:
            yield
        finally:
            self._change(way, lambda weather: weather.stall(-1))

    def corrupt(self, way: Way = "both", times: int = 1) -> None:
        """Flip one bit in each of the next chunks that come."""
        self._change(way, lambda weather: setattr(weather, "corrupt", times))

    def duplicate(self, way: Way = "both", times: int = 1) -> None:
        """Pass each of the next chunks on twice."""
        self._change(way, lambda weather: setattr(weather, "duplicate", times))

    def reset_after(self, count: int, way: Way = "both") -> None:
        """After this many more bytes the connection that carries the last of them is reset, once."""
        if count < 0:
            raise ConfigError(f"count={count} must be at least 0.")
        self._change(way, lambda weather: setattr(weather, "reset_after", count))

    # Connections.

    def cut(self) -> None:
        """Close every connection, as a program does that ends; new ones are let in."""
        self._ask(self._end_all, False)

    def reset(self) -> None:
        """Reset every connection, as a host does that has restarted; new ones are let in."""
        self._ask(self._end_all, True)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """New connections are reset within this block; those that are there stay."""
        self._refusing = True
        try:
            yield
        finally:
            self._refusing = False

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def accepted(self) -> int:
        """How many connections were let in so far."""
        return self._accepted

    def passed(self, way: Literal["up", "down"]) -> int:
        """How many bytes have been passed on in a direction, over all connections."""
        return self._weather[way].passed

    def close(self) -> None:
        """Reset what is open, and end. May be called twice."""
        if self._loop.is_closed():
            return
        self._ask(self._stop)
        self._end_loop()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # In the thread of the loop.

    async def _start(self, listen: int) -> asyncio.Server:
        for way in ("up", "down"):
            self._weather[way] = _Weather()
            self._weather[way].flowing.set()
        return await asyncio.start_server(self._serve, LOOPBACK, listen)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Side(reader, writer)
        if self._refusing:
            client.abort()
            return
        connection = _Connection(client, self._weather, self._dice)
        self._connections.add(connection)
        try:
            server = await connection.open(self._target)
            if server is not None:
                self._accepted += 1
                await connection.run(server)
        finally:
            self._connections.discard(connection)
            connection.over.set()

    async def _end_all(self, hard: bool) -> None:
        ending = list(self._connections)
        for connection in ending:
            connection.end(hard=hard)
        for connection in ending:
            await connection.over.wait()

    async def _stop(self) -> None:
        self._server.close()
        for weather in self._weather.values():
            weather.flowing.set()
        await self._end_all(True)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # From the caller's thread.

    def _ask(self, command: Callable[..., Any], *args: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(command(*args), self._loop).result(_COMMAND_S)

    def _change(self, way: Way, change: Callable[[_Weather], Any]) -> None:
        if way not in ("up", "down", "both"):
            raise ConfigError(f"way={way!r} must be 'up', 'down' or 'both'.")

        async def apply() -> None:
            for name in ("up", "down") if way == "both" else (way,):
                change(self._weather[name])

        self._ask(apply)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_COMMAND_S)
        self._loop.close()


class _Side:
    """One of the two sockets of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def abort(self) -> None:
        """Close it with a reset."""
        with contextlib.suppress(OSError):  # it is closed already
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()


class _Connection:
    """Carries bytes both ways until both ends are closed, or it is ended."""

    def __init__(self, client: _Side, weather: dict[str, _Weather], dice: random.Random) -> None:
        self._client, self._weather, self._dice = client, weather, dice
        self._tasks: list[asyncio.Future[Any]] = []
        self._hard = False
        self.over = asyncio.Event()

    async def open(self, target: tuple[str, int]) -> _Side | None:
        """Connect to the other side; None, and a reset for who has connected here, if nobody answers there."""
        opening = asyncio.ensure_future(asyncio.wait_for(asyncio.open_connection(*target), _CONNECT_S))
        self._tasks = [opening]
        await asyncio.wait(self._tasks)
        if opening.cancelled() or opening.exception() is not None:
            self._client.abort()
            return None
        return _Side(*opening.result())

    async def run(self, server: _Side) -> None:
        """To its end."""
        client, self._tasks = self._client, []
        for way, source, sink in (("up", client, server), ("down", server, client)):
            queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)
            self._tasks.append(asyncio.ensure_future(self._read(self._weather[way], source.reader, queue)))
            self._tasks.append(asyncio.ensure_future(self._write(self._weather[way], queue, sink.writer)))
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        broken = any(isinstance(result, OSError) for result in results)
        for side in (client, server):
            if self._hard or broken:  # a reset of one side is passed on to the other
                side.abort()
            else:
                side.writer.close()
                with contextlib.suppress(OSError):
                    await side.writer.wait_closed()

    def end(self, *, hard: bool) -> None:
        """End it now, with a reset or as a program does that ends."""
        self._hard = self._hard or hard
        for task in self._tasks:
            task.cancel()

    async def _read(
        self, weather: _Weather, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        try:
            while data := await reader.read(_CHUNK):
                due = max(due, loop.time() + weather.delay_s + self._dice.random() * weather.jitter_s)
                await queue.put((due, self._spoiled(weather, data)))
            await queue.put((due, b""))
        except OSError:
            self.end(hard=True)

    async def _write(
        self, weather: _Weather, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await weather.flowing.wait()
                if not data:
                    writer.write_eof()
                    return
                if weather.drop:
                    continue
                if weather.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / weather.bytes_per_s)
                await self._pass(weather, data, writer)
        except OSError:
            self.end(hard=True)

    async def _pass(self, weather: _Weather, data: bytes, writer: asyncio.StreamWriter) -> None:
        last = weather.reset_after is not None and weather.reset_after <= len(data)
        if weather.reset_after is not None:
            data = data[: weather.reset_after]
            weather.reset_after = None if last else weather.reset_after - len(data)
        weather.passed += len(data)
        writer.write(data)
        await writer.drain()
        if last:
            self.end(hard=True)

    def _spoiled(self, weather: _Weather, data: bytes) -> bytes:
        if weather.corrupt:
            weather.corrupt -= 1
            changed = bytearray(data)
            changed[self._dice.randrange(len(data))] ^= 1 << self._dice.randrange(8)
            data = bytes(changed)
        if weather.duplicate:
            weather.duplicate -= 1
            data += data
        return data
