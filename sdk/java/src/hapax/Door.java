// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.io.IOException;
import java.net.ProtocolException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * The connection to hapax door, and the ops in hand. If the connection is lost, it connects again and resumes them.
 *
 * Two threads belong to it, which wait for no handler: one connects and reads, one writes and beats. A caller's thread
 * never touches the socket: an interrupt would close it. Nor does it wait while it has the monitor, so a virtual thread holds
 * up no other.
 */
final class Door {
    private static final long PAUSE_MS = 50; // from one try to connect to the next
    static final int BODY_MAX = 16 << 20; // of an outcome
    static final Frame UNKNOWN = Frame.of(Frame.END, 0, Map.of("class", "unknown"), null);
    private static final Frame NOT_RUN = Frame.of(Frame.END, 0, Map.of("class", "not_run"), null);
    private static final Frame BYPASS = Frame.of(Frame.ANSWER, 0, Map.of("answer", "bypass", "own", true), null);

    private final Path path;
    private final Duration timeout;
    // The monitor of this object guards what is below, and all fields of calls.
    private SocketChannel channel; // null while there is none
    private long beatMs; // 0 until WELCOME
    private long greetEnd; // when WELCOME must be there
    private final List<Frame> queue = new ArrayList<>(); // to be written to the channel
    private final Map<Integer, Call> calls = new LinkedHashMap<>(); // by op; a step stands behind its operation
    private int last, lengthMax = Frame.LENGTH_MAX; // last: op of the newest call
    private boolean closed;

    enum State { ASKED, RUNNING, ENDED, OVER }

    /** What a caller waits for: RUN, RECONCILE, ANSWER, or why none comes. */
    record News(Frame frame, HapaxException error) {
    }

    /** An op in hand. */
    static final class Call {
        private Request request;
        final BlockingQueue<News> news = new LinkedBlockingQueue<>(); // RECONCILE, RUN and the last word at most
        int op;
        private String ticket; // for RESUME
        // To be sent again on a new connection: BEGIN while ASKED, END while ENDED. While RUNNING: END where nobody waits.
        private Frame again;
        private State state = State.ASKED;
        private boolean left; // nobody waits for it: it is given up where it was not run
        volatile boolean lost, stepped; // stepped: a step was begun, so this attempt may have had an effect
        private Thread handler; // to be interrupted when the claim is lost

        private void lose() {
            lost = true;
            if (handler != null)
                handler.interrupt();
        }
    }

    Door(String address, Duration timeout) {
        if (!address.startsWith("unix:"))
            throw new IllegalArgumentException("the door's address \"" + address + "\" is not unix:PATH");
        this.path = Path.of(address.substring("unix:".length()));
        this.timeout = timeout;
    }

    /** Sends BEGIN. What follows is in the call's news. */
    synchronized Call begin(Request request) {
        Frame frame = Frame.of(Frame.BEGIN, 0, request.members, request.body);
        if (closed)
            throw new IllegalStateException("hapax: the door was closed by the program");
        if (!frame.fits(lengthMax))
            throw new IllegalArgumentException("hapax: a request of over " + lengthMax + " bytes, or of too long members");
        if (last == 0) { // the first call
            daemon("hapax-door", this::read);
            daemon("hapax-door-writer", this::write);
        }
        do
            last++;
        while (last == 0 || calls.containsKey(last));
        Call call = new Call();
        call.request = request;
        call.op = last;
        call.again = frame.withOp(last);
        calls.put(last, call);
        send(call.again);
        notifyAll();
        return call;
    }

    /** Sends END, unless the op is over. Returns false, and sends that the outcome is unknown, where END is too long. */
    synchronized boolean end(Call call, Frame end) {
        boolean fits = end.fits(lengthMax);
        if (call.state == State.RUNNING)
            sendEnd(call, fits ? end : UNKNOWN);
        return fits;
    }

    /** Gives up an op that was not told to run. */
    synchronized void leave(Call call) {
        call.left = true;
        if (call.state == State.ASKED)
            send(Frame.of(Frame.CANCEL, call.op, Map.of(), null));
        else if (call.state == State.RUNNING) // its RUN, or RECONCILE, is in news
            sendEnd(call, call.again);
    }

    /** The thread that runs the handler; null: it has ended. Returns whether the claim is lost. */
    synchronized boolean handledBy(Call call, Thread thread) {
        call.handler = thread;
        if (call.lost && thread != null)
            thread.interrupt();
        return call.lost;
    }

    synchronized void close() {
        closed = true;
        hangUp();
        fail("the program closed its door");
        notifyAll();
    }

    private static void daemon(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }

    // ---- the thread that connects and reads ----------------------------------------------

    private void read() {
        do {
            String broken;
            try {
                broken = serve(connect());
                Thread.sleep(PAUSE_MS); // a door that hangs up each time is not asked for ever without a rest
            } catch (IOException | InterruptedException e) { // nobody interrupts this thread
                broken = e.getMessage();
            }
            if (broken != null)
                fail(broken);
        } while (hasWork());
    }

    /** Waits for a call. False: the door is closed. */
    private synchronized boolean hasWork() {
        while (calls.isEmpty() && !closed)
            await(0);
        return !closed;
    }

    /** Connects and reads WELCOME: again and again, until the time is over or the door refuses. */
    private SocketChannel connect() throws IOException, InterruptedException {
        for (long end = System.nanoTime() + timeout.toNanos();; Thread.sleep(PAUSE_MS)) {
            SocketChannel socket = SocketChannel.open(StandardProtocolFamily.UNIX);
            try {
                opened(socket, end);
                socket.connect(UnixDomainSocketAddress.of(path));
                welcomed(greet(socket));
                return socket;
            } catch (IOException | RuntimeException e) {
                synchronized (this) {
                    hangUp();
                    closeQuietly(socket); // where close() came first
                    if (closed || e instanceof ProtocolException || System.nanoTime() - end > 0)
                        throw new IOException("no door at unix:" + path + ": " + e.getMessage(), e);
                }
            }
        }
    }

    /** So that close() ends a greeting, and the writer one that takes too long. */
    private synchronized void opened(SocketChannel socket, long end) throws IOException {
        if (closed)
            throw new IOException("the program closed its door");
        channel = socket;
        greetEnd = end;
        notifyAll();
    }

    /** The members of WELCOME. A ProtocolException says that this client is not for the door: no other try would be better. */
    private static Map<String, Object> greet(SocketChannel socket) throws IOException {
        Map<String, ?> hello = Map.of("hapax", 1, "client", "java/0.1", "pid", ProcessHandle.current().pid());
        try {
            write(socket, List.of(Frame.of(Frame.HELLO, 0, hello, null)));
        } catch (IOException e) {
            // a door that turns us away says why, even where it did not read
        }
        Frame frame = Frame.read(socket);
        Map<String, Object> said = frame.members();
        if (frame.kind() == Frame.FAULT && "unavailable".equals(said.get("error")))
            throw new IOException(String.valueOf(said.get("text")));
        if (frame.kind() == Frame.FAULT)
            throw new ProtocolException(said.get("error") + ": " + said.get("text"));
        if (frame.kind() != Frame.WELCOME || !Long.valueOf(1).equals(said.get("version"))
                || !(said.get("beat_ms") instanceof Long ms) || ms <= 0)
            throw new ProtocolException("the door speaks version " + said.get("version"));
        return said;
    }

    private synchronized void welcomed(Map<String, Object> said) {
        beatMs = (Long) said.get("beat_ms");
        lengthMax = said.get("frame_max") instanceof Long most ? most.intValue() : Frame.LENGTH_MAX;
        queue.clear();
        resume();
        notifyAll();
    }

    /** Reads until the connection is lost. Returns why no other connection would be better, or null. */
    private String serve(SocketChannel from) {
        String broken = null;
        try {
            while (broken == null)
                broken = take(Frame.read(from));
        } catch (IOException | RuntimeException e) {
            // it is lost, or is no door's
        }
        synchronized (this) {
            hangUp();
            for (Call call : new ArrayList<>(calls.values()))
                if (call.left && call.state == State.ASKED)
                    finish(call, null, null);
                else if (call.state != State.ASKED && call.ticket == null) // it runs without the store
                    finish(call, BYPASS, null);
        }
        return broken;
    }

    // ---- the thread that writes and beats ------------------------------------------------

    private void write() {
        List<Frame> frames = new ArrayList<>();
        for (SocketChannel to = due(frames); to != null; to = due(frames)) {
            try {
                write(to, frames);
            } catch (IOException e) {
                closeQuietly(to); // the reader goes on
            }
            frames.clear();
        }
    }

    /**
     * Waits for frames to write, of which a beat is one, and for where to; ends a greeting that takes too long. Null: the door
     * was closed.
     */
    private synchronized SocketChannel due(List<Frame> frames) {
        long beaten = System.nanoTime();
        while (!closed && (beatMs == 0 || queue.isEmpty())) {
            long left = (beatMs > 0 ? beaten + beatMs * 1_000_000 : greetEnd) - System.nanoTime();
            if (channel == null || left > 0) {
                await(channel == null ? 0 : left / 1_000_000 + 1);
            } else if (beatMs == 0) {
                hangUp();
            } else {
                beaten = System.nanoTime();
                if (!calls.isEmpty())
                    queue.add(Frame.of(Frame.BEAT, 0, Map.of(), null));
            }
        }
        frames.addAll(queue);
        queue.clear();
        return channel;
    }

    private static void write(SocketChannel to, List<Frame> frames) throws IOException {
        for (Frame frame : frames) {
            ByteBuffer[] buffers = frame.buffers();
            while (buffers[1].hasRemaining() || buffers[0].hasRemaining())
                to.write(buffers);
        }
    }

    private static void closeQuietly(SocketChannel channel) {
        try (channel) { // null, too
        } catch (IOException e) {
            // it is of no use either way
        }
    }

    // ---- with the monitor ----------------------------------------------------------------

    /** Waits for a change; 0: for as long as it takes. */
    private void await(long ms) {
        try {
            wait(ms);
        } catch (InterruptedException e) {
            // nobody has this thread
        }
    }

    private void hangUp() {
        closeQuietly(channel);
        channel = null;
        beatMs = 0;
    }

    /** Without a connection a frame is dropped: resume() sends what matters. */
    private void send(Frame frame) {
        if (beatMs > 0) {
            queue.add(frame);
            notifyAll();
        }
    }

    private void sendEnd(Call call, Frame end) {
        call.state = State.ENDED;
        call.again = end.withOp(call.op);
        send(call.again);
    }

    private void finish(Call call, Frame frame, HapaxException error) {
        calls.remove(call.op);
        call.state = State.OVER;
        call.again = null;
        call.news.add(new News(frame, error));
    }

    /**
     * Ends a call by what a FAULT says. What was not told to run did not run: where the door is away, ends or has no room it may
     * be asked for again. Of what was told nobody knows, unless its END is at fault.
     */
    private void refuse(Call call, Map<String, ?> said) {
        boolean passes = "unavailable".equals(said.get("error")) || "nomem".equals(said.get("error"));
        boolean known = call.state == State.ASKED || !passes && Long.valueOf(Frame.END).equals(said.get("kind"));
        String error = !known ? "indeterminate" : passes ? "store_down" : (String) said.get("error");
        call.lose();
        finish(call, null, new HapaxException(error, (String) said.get("text"), null));
    }

    /** Tells a new connection of the calls in hand, then of ends: the door would end an operation whose steps it does not know. */
    private void resume() {
        for (Call call : calls.values())
            send(call.state == State.ASKED ? call.again : Frame.of(Frame.RESUME, call.op, call.request.resumed(call.ticket), null));
        for (Call call : calls.values())
            if (call.state == State.ENDED)
                send(call.again);
    }

    /** Ends all calls, for there is no door. */
    private synchronized void fail(String why) {
        for (Call call : new ArrayList<>(calls.values()))
            refuse(call, Map.of("error", "unavailable", "text", why));
    }

    /** Gives a frame to its call, unless its kind is of a newer door. Returns null, or why the two do not understand each other. */
    private synchronized String take(Frame frame) {
        Call call = calls.get(frame.op());
        Map<String, Object> said = frame.kind() == Frame.ANSWER ? Map.of() : frame.members(); // its caller reads that
        if (frame.kind() == Frame.FAULT && frame.op() == 0)
            return said.get("error") + ": " + said.get("text");
        if (call == null)
            return null; // it is over for us
        switch (frame.kind()) {
            case Frame.RUN, Frame.RECONCILE -> {
                if (call.state == State.RUNNING)
                    return "a RUN that nobody waits for";
                call.state = State.RUNNING;
                call.ticket = (String) said.get("ticket");
                call.again = frame.kind() == Frame.RUN ? NOT_RUN : UNKNOWN;
                if (call.left)
                    sendEnd(call, call.again);
                else
                    call.news.add(new News(frame, null));
            }
            case Frame.LOST -> call.lose();
            case Frame.ANSWER -> finish(call, frame, null);
            case Frame.FAULT -> {
                if (!(said.get("kind") instanceof Long of && (of == Frame.BEAT || of == Frame.CANCEL)))
                    refuse(call, said);
            }
        }
        return null;
    }
}
