// SPDX-License-Identifier: Apache-2.0
package hapax.servlet;

import hapax.Answer;
import hapax.Hapax;
import hapax.HapaxException;
import hapax.Op;
import hapax.Options;
import hapax.Request;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;

/**
 * Runs what is behind it once for each Idempotency-Key, and gives every repeat the first response. For servlets of Jakarta EE
 * 10 and later; in Spring Boot 3 a {@code FilterRegistrationBean<OnceFilter>} puts it before some paths.
 *
 * Method, host, path, query and body make the request this request; the credentials that it carries make its caller, unless
 * the options name an owner or a caller. The response is kept as it is, with its status deciding what a retry gets, and is
 * sent once it is stored; its cookies are in no repeat. So it cannot be streamed, nor be asynchronous: then its client gets
 * 500, and the outcome is unknown. One over 16 MiB is passed on as it is written, and is not kept: every repeat is told that
 * it is gone. An error that is sent has its message as a text, in place of the container's page. Requests with the methods GET, HEAD, OPTIONS and TRACE pass. If the claim is lost the thread is
 * interrupted. What throws has failed.
 *
 * A form's parameters are not read before the body is: read the body, or send JSON.
 */
public final class OnceFilter implements Filter {
    /** The request attribute that has the {@link Op}, within what runs. */
    public static final String OP = "hapax.op";
    private static final int BODY_MAX = 16 << 20;
    private static final Set<String> SAFE = Set.of("GET", "HEAD", "OPTIONS", "TRACE");
    /** The door is away, ends, or has no room. */
    private static final Set<String> PASSING = Set.of("store_down", "indeterminate", "unavailable", "nomem");

    private final Hapax hapax;
    private final String scope;
    private final Function<HttpServletRequest, Options> options;

    /** options: of each request, such as its owner. */
    public OnceFilter(Hapax hapax, String scope, Function<HttpServletRequest, Options> options) {
        this.hapax = hapax;
        this.scope = scope;
        this.options = options;
    }

    @Override
    public void doFilter(ServletRequest from, ServletResponse to, FilterChain chain) throws IOException, ServletException {
        HttpServletRequest request = (HttpServletRequest) from;
        HttpServletResponse response = (HttpServletResponse) to;
        if (SAFE.contains(request.getMethod())) {
            chain.doFilter(request, response);
            return;
        }
        byte[] body = null; // without a key the servlet reads it itself
        if (request.getHeader("Idempotency-Key") != null)
            body = request.getInputStream().readNBytes(BODY_MAX + 1);
        Op op = null;
        try {
            Op.Turn turn = hapax.begin(beginOf(request, body == null ? new byte[0] : body));
            op = turn.op();
            Kept kept = new Kept(response);
            Answer answer = turn.answer();
            if (op != null)
                answer = run(op, new Kept.Again(request, body), kept, chain);
            if (!kept.isPassed())
                send(response, kept, answer);
        } catch (HapaxException e) {
            if (response.isCommitted()) { // it was passed on
                request.getServletContext().log("hapax: the outcome of a request may not be stored", e);
            } else if (PASSING.contains(e.answer())) {
                response.setHeader("Retry-After", "1");
                problem(response, 503, "The operation cannot be protected now. Send it again, with the same key.");
            } else { // an option that is wrong, or a response that cannot be kept
                problem(response, 500, "The operation was refused.");
                request.getServletContext().log("hapax: a request was refused", e);
            }
        }
    }

    private Request beginOf(HttpServletRequest request, byte[] body) {
        List<List<Object>> headers = new ArrayList<>();
        for (String name : Collections.list(request.getHeaderNames()))
            for (String value : Collections.list(request.getHeaders(name)))
                headers.add(List.of(text(name), text(value)));
        String query = request.getQueryString();
        Request begin = new Request().set("scope", scope).set("as", "http").body(body).set("request", Map.of(
                "method", request.getMethod(), "host", String.valueOf(request.getHeader("Host")),
                "uri", request.getRequestURI() + (query == null ? "" : "?" + query), "headers", headers));
        options.apply(request).into(begin);
        return begin;
    }

    private static Object text(String header) {
        return Request.text(header.getBytes(StandardCharsets.ISO_8859_1));
    }

    private static Answer run(Op op, Kept.Again request, Kept kept, FilterChain chain)
            throws IOException, ServletException {
        boolean returned = false;
        request.setAttribute(OP, op);
        try {
            op.<Void, IOException, ServletException>running(() -> {
                chain.doFilter(request, kept);
                return null;
            });
            returned = true;
        } finally {
            request.removeAttribute(OP);
            if (!returned)
                op.end(kept.isCut() || request.isLate() ? "unknown" : null, 500, List.of(), null);
        }
        if (kept.isCut() || request.isLate()) { // a part of it would be no response, and it has run
            op.end("unknown", 0, List.of(), null);
            throw new IOException(kept.isCut() ? "the client has a part of its response"
                    : "the response is asynchronous, and cannot be kept");
        }
        if (kept.isPassed())
            return op.endUnkept(kept.getStatus(), kept.headers()).answer();
        return op.end(null, kept.getStatus(), kept.headers(), kept.body()).answer();
    }

    private static void send(HttpServletResponse response, Kept kept, Answer answer) throws IOException {
        byte[] body = answer.own() ? kept.body() : answer.body();
        if (answer.own())
            kept.sendHead();
        else
            response.setStatus(answer.status());
        for (String[] header : answer.headers())
            response.addHeader(header[0], header[1]);
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
    }

    private static void problem(HttpServletResponse response, int status, String detail) throws IOException {
        response.setStatus(status);
        response.setContentType("application/problem+json");
        response.getOutputStream().write(("{\"type\":\"about:blank\",\"status\":" + status + ",\"detail\":\"" + detail + "\"}\n")
                .getBytes(StandardCharsets.UTF_8));
    }
}
