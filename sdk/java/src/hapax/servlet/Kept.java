// SPDX-License-Identifier: Apache-2.0
package hapax.servlet;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.io.UnsupportedEncodingException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A response in memory: nothing of it reaches the client before it is stored, unless it is over 16 MiB: then it is passed on,
 * for no door could keep it. It is what a container would have made of it, but for a page of the container's own: an error that
 * is sent has its message as a text.
 */
final class Kept extends HttpServletResponseWrapper {
    private static final int BODY_MAX = 16 << 20;
    private static final Set<String> OURS = Set.of("idempotency-replayed", "idempotency-recorded", "idempotency-protected",
            "idempotency-ttl");
    private static final DateTimeFormatter DATE =
            DateTimeFormatter.ofPattern("EEE, dd MMM yyyy HH:mm:ss 'GMT'", Locale.US).withZone(ZoneOffset.UTC);
    private static final Pattern CHARSET = Pattern.compile("(?i)\\s*;\\s*charset\\s*=\\s*\"?([^\";\\s]*)\"?");
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    private final List<String[]> headers = new ArrayList<>();
    private int status = SC_OK;
    private String charset; // null: not said, so the container's
    private PrintWriter writer;
    private boolean streamed; // getOutputStream() was called
    private boolean sealed; // an error or a redirect was sent: what follows is dropped, as by a container
    private boolean passed; // what is written goes to the client
    private boolean cut; // a part of that did not

    Kept(HttpServletResponse outer) {
        super(outer);
    }

    /** It is over its limit, and its client has it, or a part of it. */
    boolean isPassed() {
        flush();
        return passed;
    }

    /** Its client has a part of it, and nobody has the rest. */
    boolean isCut() {
        flush();
        return cut;
    }

    /** Says status and headers to the client, but for headers that are the door's. */
    void sendHead() {
        HttpServletResponse to = (HttpServletResponse) getResponse();
        to.setStatus(status);
        for (String[] header : headers)
            if (!OURS.contains(header[0].toLowerCase(Locale.ROOT)))
                to.addHeader(header[0], header[1]);
    }

    byte[] body() {
        flush();
        return body.toByteArray();
    }

    List<String[]> headers() {
        return headers;
    }

    // ---- status and headers ----

    @Override
    public void setStatus(int code) {
        if (!isCommitted())
            status = code;
    }

    @Override
    public int getStatus() {
        return status;
    }

    @Override
    public void sendError(int code) {
        sendError(code, null);
    }

    @Override
    public void sendError(int code, String message) {
        resetBuffer();
        status = code;
        headers.removeIf(pair -> pair[0].equalsIgnoreCase("Content-Type"));
        if (message != null) {
            headers.add(new String[] {"Content-Type", "text/plain;charset=UTF-8"});
            body.writeBytes(message.getBytes(StandardCharsets.UTF_8));
        }
        sealed = true;
    }

    @Override
    public void sendRedirect(String location) {
        sendRedirect(location, SC_FOUND, true);
    }

    /** As Servlet 6.1 has it, whose other ways to redirect come here. */
    public void sendRedirect(String location, int code, boolean clear) {
        if (clear)
            resetBuffer();
        flush();
        setStatus(code);
        setHeader("Location", location);
        sealed = true;
    }

    @Override
    public void addHeader(String name, String value) {
        if (isCommitted() || name == null || name.isEmpty() || value == null || name.equalsIgnoreCase("Content-Length"))
            return; // the filter sets the length
        if (name.equalsIgnoreCase("Content-Type"))
            setContentType(value);
        else
            headers.add(new String[] {name, value});
    }

    @Override
    public void setHeader(String name, String value) {
        if (!isCommitted())
            headers.removeIf(pair -> pair[0].equalsIgnoreCase(name));
        addHeader(name, value);
    }

    @Override
    public void addIntHeader(String name, int value) {
        addHeader(name, Integer.toString(value));
    }

    @Override
    public void setIntHeader(String name, int value) {
        setHeader(name, Integer.toString(value));
    }

    @Override
    public void addDateHeader(String name, long ms) {
        addHeader(name, DATE.format(Instant.ofEpochMilli(ms)));
    }

    @Override
    public void setDateHeader(String name, long ms) {
        setHeader(name, DATE.format(Instant.ofEpochMilli(ms)));
    }

    @Override
    public void addCookie(Cookie cookie) {
        StringBuilder line = new StringBuilder(cookie.getName()).append('=');
        line.append(cookie.getValue() == null ? "" : cookie.getValue());
        cookie.getAttributes().forEach((name, value) -> { // of a flag the value is "true", or since Servlet 6.1 ""
            boolean flag = name.equalsIgnoreCase("Secure") || name.equalsIgnoreCase("HttpOnly");
            if (!flag || !value.equals("false"))
                line.append("; ").append(name).append(flag || value.isEmpty() ? "" : "=" + value);
        });
        addHeader("Set-Cookie", line.toString());
    }

    @Override
    public void setLocale(Locale locale) {
        setHeader("Content-Language", locale.toLanguageTag());
    }

    @Override
    public Locale getLocale() {
        String tag = getHeader("Content-Language");
        return tag == null ? super.getLocale() : Locale.forLanguageTag(tag);
    }

    @Override
    public void setTrailerFields(Supplier<Map<String, String>> fields) {
        throw new IllegalStateException("a response that is kept has no trailers");
    }

    @Override
    public boolean containsHeader(String name) {
        return getHeader(name) != null;
    }

    @Override
    public String getHeader(String name) {
        return getHeaders(name).stream().findFirst().orElse(null);
    }

    @Override
    public Collection<String> getHeaders(String name) {
        return headers.stream().filter(pair -> pair[0].equalsIgnoreCase(name)).map(pair -> pair[1]).toList();
    }

    @Override
    public Collection<String> getHeaderNames() {
        return headers.stream().map(pair -> pair[0]).distinct().toList();
    }

    /** Once there is a writer its encoding stands, whatever the type says. */
    @Override
    public void setContentType(String type) {
        if (isCommitted())
            return;
        headers.removeIf(pair -> pair[0].equalsIgnoreCase("Content-Type"));
        if (type == null)
            return;
        Matcher said = CHARSET.matcher(type);
        if (said.find() && writer == null)
            charset = said.group(1);
        else if (charset != null)
            type = CHARSET.matcher(type).replaceAll("") + ";charset=" + charset;
        headers.add(new String[] {"Content-Type", type});
    }

    @Override
    public String getContentType() {
        return getHeader("Content-Type");
    }

    @Override
    public void setCharacterEncoding(String name) {
        if (writer != null)
            return;
        charset = name;
        String type = getContentType();
        if (type != null)
            setContentType(CHARSET.matcher(type).replaceAll(""));
    }

    @Override
    public String getCharacterEncoding() {
        return charset == null ? super.getCharacterEncoding() : charset;
    }

    @Override
    public void setContentLength(int length) {
        // the filter sets it
    }

    @Override
    public void setContentLengthLong(long length) {
        // the filter sets it
    }

    // ---- the body ----

    private void take(byte[] bytes, int from, int count) throws IOException {
        if (sealed)
            return;
        if (!passed && body.size() + count <= BODY_MAX) {
            body.write(bytes, from, count);
            return;
        }
        try {
            if (!passed) {
                passed = true;
                sendHead();
                body.writeTo(getResponse().getOutputStream());
                body.reset();
            }
            getResponse().getOutputStream().write(bytes, from, count);
        } catch (IOException e) {
            cut = true;
            throw e;
        }
    }

    private void flush() {
        if (writer != null)
            writer.flush();
    }

    @Override
    public ServletOutputStream getOutputStream() {
        if (writer != null)
            throw new IllegalStateException("getWriter() was called for this response");
        streamed = true;
        return new Stream();
    }

    private final class Stream extends ServletOutputStream {
        @Override
        public void write(int b) throws IOException {
            take(new byte[] {(byte) b}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int from, int count) throws IOException {
            take(bytes, from, count);
        }

        @Override
        public boolean isReady() {
            return true;
        }

        @Override
        public void setWriteListener(WriteListener listener) {
            throw new IllegalStateException("a response that is kept is not written by events");
        }
    }

    @Override
    public PrintWriter getWriter() throws UnsupportedEncodingException {
        if (streamed)
            throw new IllegalStateException("getOutputStream() was called for this response");
        if (writer == null) {
            setCharacterEncoding(getCharacterEncoding());
            writer = new PrintWriter(new OutputStreamWriter(new Stream(), charset));
        }
        return writer;
    }

    @Override
    public void flushBuffer() {
        // it is sent once it is stored
    }

    @Override
    public boolean isCommitted() {
        return sealed || passed;
    }

    @Override
    public void resetBuffer() {
        if (isCommitted())
            throw new IllegalStateException("an error or a redirect was sent, or the response is over its limit");
        flush();
        body.reset();
    }

    @Override
    public void reset() {
        resetBuffer();
        headers.clear();
        status = SC_OK;
        charset = null;
        writer = null;
        streamed = false;
    }

    /** A request whose response is kept; its body, if that was read, is read again. */
    static final class Again extends HttpServletRequestWrapper {
        private final ByteArrayInputStream bytes; // null: not read yet
        private final Exchange exchange;
        private Late late; // the asynchronous handling that was begun last

        Again(HttpServletRequest outer, byte[] body, Exchange exchange) {
            super(outer);
            this.bytes = body == null ? null : new ByteArrayInputStream(body);
            this.exchange = exchange;
        }

        @Override
        public AsyncContext startAsync() {
            return startAsync(this, exchange.kept());
        }

        @Override
        public AsyncContext startAsync(ServletRequest request, ServletResponse response) {
            late = new Late(super.startAsync(request, response), exchange);
            exchange.begunLate();
            return late;
        }

        /** The handler has thrown after it had begun asynchronous handling. */
        void giveUpLate() {
            late.giveUp();
        }

        @Override
        public AsyncContext getAsyncContext() {
            return late == null ? super.getAsyncContext() : late;
        }

        @Override
        public ServletInputStream getInputStream() throws IOException {
            return bytes == null ? super.getInputStream() : new ServletInputStream() {
                @Override
                public int read() {
                    return bytes.read();
                }

                @Override
                public int read(byte[] into, int from, int count) {
                    return bytes.read(into, from, count);
                }

                @Override
                public boolean isFinished() {
                    return bytes.available() == 0;
                }

                @Override
                public boolean isReady() {
                    return true;
                }

                @Override
                public void setReadListener(ReadListener listener) {
                    throw new IllegalStateException("a request that was read is not read by events");
                }
            };
        }

        @Override
        public BufferedReader getReader() throws IOException {
            if (bytes == null)
                return super.getReader();
            String name = getCharacterEncoding();
            return new BufferedReader(new InputStreamReader(getInputStream(), name == null ? "ISO-8859-1" : name));
        }
    }
}
