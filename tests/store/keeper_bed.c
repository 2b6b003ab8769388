/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper's test bed. The memory store stands behind two wrappers: one whose close leaves it
 * open, so that a second keeper can hold the same records, and the faulty one.
 */
#include "keeper_bed.h"

#include "base/arena.h"
#include "base/socket.h"
#include "store/types.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int64_t bed_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void bed_pause(void)
{
    poll(NULL, 0, 2);
}

/* ---- a store that outlives its handle ------------------------------------------------ */

struct borrowed {
    struct hapax_store base;
    struct hapax_store *inner;
};

static enum hapax_error borrowed_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    return hapax_store_run(((struct borrowed *)store)->inner, ops, n);
}

static enum hapax_error borrowed_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    return hapax_store_check(((struct borrowed *)store)->inner, say, arg);
}

static void borrowed_close(struct hapax_store *store)
{
    free(store);
}

static struct hapax_store *lend;

static enum hapax_error borrowed_open(struct hapax_store **out, const char *uri,
                                      char text[HAPAX_TEXT_MAX])
{
    struct borrowed *borrowed = calloc(1, sizeof(*borrowed));

    (void)uri;
    (void)text;
    must(borrowed);
    borrowed->inner = lend;
    *out = &borrowed->base;
    return HAPAX_ERR_NONE;
}

static const struct hapax_store_type borrowed_type = {
    .scheme = "borrowed",
    .batch_max = HAPAX_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .serial = true,
    .open = borrowed_open,
    .run = borrowed_run,
    .check = borrowed_check,
    .close = borrowed_close,
};

/* ---- the bed ------------------------------------------------------------------------- */

void bed_serve(struct bed *bed, struct hapax__keeper_options *options)
{
    struct hapax__keeper_options plain = {0};
    char text[HAPAX_TEXT_MAX] = "";
    struct hapax_store *inner, *store;

    if (!options)
        options = &plain;
    options->path = bed->path;
    lend = bed->kept;
    hapax__store_add(&borrowed_type);
    must(hapax_store_open(&inner, "borrowed:", text) == HAPAX_ERR_NONE);
    must(hapax__faulty_wrap(&store, inner, &bed->plan) == HAPAX_ERR_NONE);
    if (hapax__keeper_serve(&bed->server, store, options, text) != HAPAX_ERR_NONE) {
        fprintf(stderr, "%s\n", text);
        abort();
    }
}

void bed_open(struct bed *bed, struct hapax__keeper_options *options)
{
    char text[HAPAX_TEXT_MAX];

    memset(bed, 0, sizeof(*bed));
    snprintf(bed->folder, sizeof(bed->folder), "/tmp/hapax-keeper-XXXXXX");
    must(mkdtemp(bed->folder));
    snprintf(bed->path, sizeof(bed->path), "%s/keeper.sock", bed->folder);
    snprintf(bed->uri, sizeof(bed->uri), "unix:%s", bed->path);
    hapax__plan_init(&bed->plan);
    must(hapax_store_open(&bed->kept, "memory:", text) == HAPAX_ERR_NONE);
    bed_serve(bed, options);
}

void bed_close(struct bed *bed)
{
    hapax__keeper_stop(bed->server);
    hapax_store_close(bed->kept);
    hapax__plan_release(&bed->plan);
    must(access(bed->path, F_OK) != 0 && errno == ENOENT);
    must(rmdir(bed->folder) == 0);
}

struct hapax_store *bed_client(const struct bed *bed, const char *query)
{
    char uri[128], text[HAPAX_TEXT_MAX];
    struct hapax_store *store;

    snprintf(uri, sizeof(uri), "%s%s", bed->uri, query);
    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE) {
        fprintf(stderr, "%s\n", text);
        abort();
    }
    return store;
}

struct hapax_op bed_op(enum hapax_op_kind kind, unsigned n, unsigned who)
{
    struct hapax_op op;

    memset(&op, 0, sizeof(op));
    op.kind = kind;
    if (kind != HAPAX_OP_LIST && kind != HAPAX_OP_PURGE) {
        memcpy(op.id.bytes, &n, sizeof(n));
        op.id.bytes[31] = 1;
        memcpy(op.token.bytes, &who, sizeof(who));
        op.token.bytes[15] = 1;
    }
    if (kind == HAPAX_OP_CLAIM)
        op.scope = hapax_str("orders");
    op.lease_ms = 30000;
    op.retention_ms = 60000;
    op.on_expired = HAPAX_EXPIRED_RERUN;
    op.resolve = HAPAX_RESOLVE_COMPLETE;
    return op;
}

void bed_still_serves(const struct bed *bed)
{
    struct hapax_store *client = bed_client(bed, "?timeout=30s"); /* any process may stand still */
    struct hapax_op op = bed_op(HAPAX_OP_READ, 4000000, 1);

    must(hapax_store_run(client, &op, 1) == HAPAX_ERR_NONE);
    must(op.verdict == HAPAX_ABSENT);
    hapax_store_close(client);
}

/* ---- peers --------------------------------------------------------------------------- */

int peer_dial(const char *path)
{
    struct timeval wait = {.tv_sec = WAIT_MS / 1000};
    struct sockaddr_un address;
    char text[HAPAX_TEXT_MAX];
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    must(fd >= 0);
    must(hapax__socket_address(&address, path, text) == HAPAX_ERR_NONE);
    must(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) == 0);
    must(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) == 0);
    return fd;
}

int peer_greet(const char *path)
{
    struct hapax__hello hello = {.version = HAPAX__FRAME_VERSION, .frame_max = HAPAX__FRAME_MAX};
    uint8_t bytes[HAPAX__FRAME_HEAD + HAPAX__FRAME_HELLO_SIZE], kind;
    struct hapax__writer w = {bytes, sizeof(bytes)};
    struct hapax_span payload;
    int fd = peer_dial(path);

    hapax__frame_put_hello(&w, &hello);
    must(peer_send(fd, bytes, sizeof(bytes)));
    must(peer_read(fd, &kind, &payload));
    must(kind == HAPAX__FRAME_WELCOME && hapax__frame_take_welcome(payload, &hello));
    must(hello.version == HAPAX__FRAME_VERSION && hello.pid == (uint32_t)getpid());
    free((void *)(uintptr_t)payload.ptr);
    return fd;
}

bool peer_send(int fd, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;

    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            must(errno == EPIPE || errno == ECONNRESET);
            return false;
        }
        at += sent;
        len -= (size_t)sent;
    }
    return true;
}

static bool read_all(int fd, uint8_t *at, size_t len)
{
    while (len > 0) {
        ssize_t got = recv(fd, at, len, 0);

        if (got < 0 && errno == EINTR)
            continue;
        must(got >= 0 || errno == ECONNRESET); /* EAGAIN: it took too long */
        if (got <= 0)
            return false;
        at += got;
        len -= (size_t)got;
    }
    return true;
}

bool peer_read(int fd, uint8_t *kind, struct hapax_span *payload)
{
    uint8_t head[HAPAX__FRAME_HEAD], *bytes;
    struct hapax__reader r = {head, sizeof(head), false};
    size_t len;

    if (!read_all(fd, head, sizeof(head)))
        return false;
    len = hapax__take_u32(&r);
    *kind = hapax__take_u8(&r);
    must(len >= 1 && len <= HAPAX__FRAME_MAX);
    bytes = malloc(len);
    must(bytes);
    if (!read_all(fd, bytes, len - 1)) {
        free(bytes);
        return false;
    }
    *payload = (struct hapax_span){bytes, len - 1};
    return true;
}

void peer_ends(int fd)
{
    uint8_t byte;

    must(!read_all(fd, &byte, 1));
    close(fd);
}

void peer_faulted(int fd, const char *text)
{
    char said[HAPAX_TEXT_MAX];
    struct hapax_span payload;
    enum hapax_error error;
    uint8_t kind;

    must(peer_read(fd, &kind, &payload));
    must(kind == HAPAX__FRAME_FAULT && hapax__frame_take_fault(payload, &error, said));
    if (!strstr(said, text)) {
        fprintf(stderr, "the fault is \"%s\", not \"%s\"\n", said, text);
        abort();
    }
    free((void *)(uintptr_t)payload.ptr);
    peer_ends(fd);
}

struct hapax_span peer_request(uint32_t seq, const struct hapax_op *ops, uint16_t n)
{
    struct hapax__request request = {.seq = seq, .count = n};
    struct hapax__writer w;
    size_t size = 0;
    uint8_t *bytes;

    for (uint16_t i = 0; i < n; i++)
        size += hapax__frame_op_size(&ops[i]);
    bytes = malloc(HAPAX__FRAME_HEAD + HAPAX__FRAME_REQUEST_SIZE + size);
    must(bytes);
    w = (struct hapax__writer){bytes, HAPAX__FRAME_HEAD + HAPAX__FRAME_REQUEST_SIZE + size};
    hapax__frame_put_request(&w, &request, size);
    for (uint16_t i = 0; i < n; i++)
        hapax__frame_put_op(&w, &ops[i]);
    must(w.left == 0);
    return (struct hapax_span){bytes, (size_t)(w.at - bytes)};
}

bool peer_answers(int fd, uint32_t seq, struct hapax_op *ops, uint16_t n,
                  struct peer_frame **frames)
{
    struct hapax_arena arena = {0};
    char text[HAPAX_TEXT_MAX];
    uint16_t place = 0;

    while (place < n) {
        struct peer_frame *frame = calloc(1, sizeof(*frame));
        struct hapax__frame_reply reply;
        struct hapax_span payload;
        struct hapax__reader r;
        uint8_t kind;

        must(frame);
        if (!peer_read(fd, &kind, &payload)) {
            free(frame);
            return false;
        }
        *frame = (struct peer_frame){*frames, (uint8_t *)(uintptr_t)payload.ptr};
        *frames = frame;
        must(kind == HAPAX__FRAME_REPLY);
        r = (struct hapax__reader){payload.ptr, payload.len, false};
        must(hapax__frame_take_reply(&r, &reply) && reply.seq == seq && reply.first == place);
        for (uint16_t i = 0; i < reply.count; i++, place++) {
            must(place < n && ops[place].kind != HAPAX_OP_LIST);
            must(hapax__frame_take_answer(&r, &ops[place], &arena, text) == HAPAX__TAKEN);
        }
        must(r.left == 0);
    }
    return true;
}

void peer_free(struct peer_frame *frames)
{
    while (frames) {
        struct peer_frame *next = frames->next;

        free(frames->bytes);
        free(frames);
        frames = next;
    }
}

struct bed_info bed_ask(const struct bed *bed)
{
    uint8_t bytes[HAPAX__FRAME_HEAD + HAPAX__FRAME_ASK_SIZE], kind;
    struct hapax__writer w = {bytes, sizeof(bytes)};
    struct hapax_span payload;
    struct hapax__info info;
    int fd = peer_greet(bed->path);

    hapax__frame_put_ask(&w, 5);
    must(peer_send(fd, bytes, sizeof(bytes)) && peer_read(fd, &kind, &payload));
    must(kind == HAPAX__FRAME_INFO && hapax__frame_take_info(payload, &info) && info.seq == 5);
    free((void *)(uintptr_t)payload.ptr);
    close(fd);
    return (struct bed_info){info.queued, info.clients};
}
