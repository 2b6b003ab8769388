// SPDX-License-Identifier: Apache-2.0
package hapax.servlet;

import hapax.Answer;
import hapax.HapaxException;
import hapax.Op;

import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * A request that runs. It ends once: when the chain behind the filter has returned; or, where that has begun asynchronous
 * handling, when this is completed ({@link Late}).
 */
final class Exchange {
    private final Op op;
    private final HttpServletResponse response; // the client's
    private final Kept kept;
    private final Kept.Again request;
    private final AtomicBoolean ended = new AtomicBoolean();
    private volatile boolean late; // asynchronous handling was begun, and is not dispatched

    Exchange(Op op, HttpServletRequest request, byte[] body, HttpServletResponse response) {
        this.op = op;
        this.response = response;
        this.kept = new Kept(response);
        this.request = new Kept.Again(request, body, this);
    }

    Kept kept() {
        return kept;
    }

    /** Runs what is behind the filter. */
    void run(FilterChain chain) throws IOException, ServletException {
        request.setAttribute(OnceFilter.OP, op);
        request.setAttribute(OnceFilter.EXCHANGE, this);
        pass(chain, request, kept);
    }

    /** Runs a part of it: the first, or what asynchronous handling has dispatched to. */
    void pass(FilterChain chain, ServletRequest from, ServletResponse to) throws IOException, ServletException {
        boolean returned = false;
        late = false;
        try {
            op.<Void, IOException, ServletException>running(() -> {
                chain.doFilter(from, to);
                return null;
            });
            returned = true;
        } finally {
            if (!returned)
                end(late ? "unknown" : null);
            if (!returned && late)
                request.giveUpLate();
        }
        if (!late)
            finish();
    }

    /** Asynchronous handling has begun. Where it ends without a response, its client gets the status 500. */
    void begunLate() {
        late = true;
        response.setStatus(HttpServletResponse.SC_INTERNAL_SERVER_ERROR);
    }

    /** Stores the response, and then sends it. */
    void finish() throws IOException {
        if (kept.isCut() && end("unknown")) // a part of it would be no response, and it has run
            throw new IOException("the client has a part of its response");
        if (ended.getAndSet(true))
            return;
        try {
            boolean passed = kept.isPassed();
            Answer answer = passed ? op.endUnkept(kept.getStatus(), kept.headers()).answer()
                    : op.end(null, kept.getStatus(), kept.headers(), kept.body()).answer();
            if (!passed)
                OnceFilter.send(response, kept, answer);
        } catch (HapaxException e) {
            OnceFilter.refuse(request, response, e, true);
        }
    }

    /** Ends it without a response of its own; null: it has failed. False: it has ended before. */
    boolean end(String how) {
        if (ended.getAndSet(true))
            return false;
        op.end(kept.isCut() ? "unknown" : how, 500, List.of(), null);
        return true;
    }
}
