// SPDX-License-Identifier: Apache-2.0
package hapax.servlet;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.AsyncEvent;
import jakarta.servlet.AsyncListener;
import jakarta.servlet.ServletContext;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;

import java.io.IOException;
import java.io.UncheckedIOException;

/**
 * Asynchronous handling of a request that runs once: the container's own, but that the response is stored and sent before it
 * is completed. What is dispatched to comes through the filter again, which ends it. Where it ends otherwise, as by a
 * timeout, nobody can tell what it did.
 */
final class Late implements AsyncContext {
    private final AsyncContext outer;
    private final Exchange exchange;

    Late(AsyncContext outer, Exchange exchange) {
        this.outer = outer;
        this.exchange = exchange;
        outer.addListener(new Listener(null));
    }

    @Override
    public void complete() {
        try {
            exchange.finish();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } finally {
            outer.complete();
        }
    }

    /** Completes the container's own without a response. Tomcat 10.1 has a request in hand for ever whose servlet throws. */
    void giveUp() {
        try {
            outer.complete();
        } catch (IllegalStateException e) {
            // it was completed, or dispatched
        }
    }

    @Override
    public void addListener(AsyncListener listener) {
        outer.addListener(new Listener(listener));
    }

    @Override
    public void addListener(AsyncListener listener, ServletRequest request, ServletResponse response) {
        outer.addListener(new Listener(listener), request, response);
    }

    /** A listener of the application's, which is given this context in place of the container's; or the last one, of ours. */
    private final class Listener implements AsyncListener {
        private final AsyncListener theirs; // null: it is ours

        Listener(AsyncListener theirs) {
            this.theirs = theirs;
        }

        private AsyncEvent ours(AsyncEvent event) {
            return new AsyncEvent(Late.this, event.getSuppliedRequest(), event.getSuppliedResponse(), event.getThrowable());
        }

        @Override
        public void onComplete(AsyncEvent event) throws IOException {
            if (theirs != null)
                theirs.onComplete(ours(event));
            else
                exchange.end("unknown"); // where nothing has ended it
        }

        @Override
        public void onTimeout(AsyncEvent event) throws IOException {
            if (theirs != null)
                theirs.onTimeout(ours(event));
        }

        @Override
        public void onError(AsyncEvent event) throws IOException {
            if (theirs != null)
                theirs.onError(ours(event));
        }

        @Override
        public void onStartAsync(AsyncEvent event) throws IOException {
            if (theirs != null)
                theirs.onStartAsync(ours(event));
        }
    }

    // ---- the container's own ----

    @Override
    public ServletRequest getRequest() {
        return outer.getRequest();
    }

    @Override
    public ServletResponse getResponse() {
        return outer.getResponse();
    }

    @Override
    public boolean hasOriginalRequestAndResponse() {
        return outer.hasOriginalRequestAndResponse();
    }

    @Override
    public void dispatch() {
        outer.dispatch();
    }

    @Override
    public void dispatch(String path) {
        outer.dispatch(path);
    }

    @Override
    public void dispatch(ServletContext context, String path) {
        outer.dispatch(context, path);
    }

    @Override
    public void start(Runnable work) {
        outer.start(work);
    }

    @Override
    public <T extends AsyncListener> T createListener(Class<T> type) throws ServletException {
        return outer.createListener(type);
    }

    @Override
    public void setTimeout(long ms) {
        outer.setTimeout(ms);
    }

    @Override
    public long getTimeout() {
        return outer.getTimeout();
    }
}
