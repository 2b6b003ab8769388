/* SPDX-License-Identifier: Apache-2.0
 *
 * The form, the cipher and the keys of seal.h. EVP's AES-256-GCM does the sealing; the keys and the
 * nonce are HMACs of the core's.
 */
#include "seal.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/fail.h"
#include "core/id.h"
#include "types.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdlib.h>

#define FORM       1u
#define NONCE_SIZE 12u
#define TAG_SIZE   16u
#define HEX_SIZE   64u
#define BOUND_MAX  (HAPAX__SEAL_MAX - NONCE_SIZE - TAG_SIZE + 3 * 32u + 2u + 1u + 4u)

static const char label[] = "hapax outcome 1";

/* ---- the file ------------------------------------------------------------------------ */

static bool is_key_id(struct hapax_span id)
{
    if (id.len == 0 || id.len > HAPAX__KEY_ID_MAX)
        return false;
    for (size_t i = 0; i < id.len; i++) {
        uint8_t c = id.ptr[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '.' || c == '_' || c == '-'))
            return false;
    }
    return true;
}

static const struct hapax__key *find(const struct hapax__keys *keys, struct hapax_span id)
{
    for (uint32_t i = 0; keys && i < keys->n; i++)
        if (hapax__same(hapax_str(keys->key[i].id), id))
            return &keys->key[i];
    return NULL;
}

static void set_check(struct hapax__key *key)
{
    const struct hapax_span parts[] = {hapax_str("hapax key check 1")};
    struct hapax_digest digest;

    hapax__mac(&digest, (struct hapax_span){key->bytes, sizeof(key->bytes)}, parts, 1);
    memcpy(key->check, digest.bytes, sizeof(key->check));
}

/* Reads one line without its end. Returns what is wrong with it; NULL: nothing. */
static const char *read_line(struct hapax__keys *out, struct hapax_span line)
{
    const uint8_t *space = line.len > 0 ? memchr(line.ptr, ' ', line.len) : NULL;
    struct hapax_span id = {line.ptr, space ? (size_t)(space - line.ptr) : line.len};
    struct hapax__key *key = &out->key[out->n];

    if (line.len == 0 || line.ptr[0] == '#')
        return NULL;
    if (hapax__same(line, hapax_str("sealed-only"))) {
        out->required = true;
        return NULL;
    }
    if (!is_key_id(id))
        return "an id has 1 to 32 letters, digits, '.', '_' and '-'";
    if (find(out, id))
        return "this id stands before";
    if (out->n == HAPAX__KEYS_MAX)
        return "there are more than 16 keys";
    if (!space || line.len != id.len + 1 + HEX_SIZE ||
        !hapax__unhex(key->bytes, space + 1, HEX_SIZE / 2))
        return "it is not \"ID HEX\" with one space and 64 hex digits in lower case";
    memcpy(key->id, id.ptr, id.len);
    key->id[id.len] = '\0';
    set_check(key);
    out->n++;
    return NULL;
}

enum hapax_error hapax__keys_read(struct hapax__keys *out, struct hapax_span text,
                                  char why[HAPAX_TEXT_MAX])
{
    unsigned number = 0;

    memset(out, 0, sizeof(*out));
    if (text.len > HAPAX__KEYS_TEXT)
        return hapax__fail(why, HAPAX_ERR_INVALID, "it is over %u bytes", HAPAX__KEYS_TEXT);
    while (text.len > 0) {
        const uint8_t *end = memchr(text.ptr, '\n', text.len);
        struct hapax_span line = {text.ptr, end ? (size_t)(end - text.ptr) : text.len};
        size_t taken = line.len + (end ? 1 : 0);
        const char *wrong = read_line(out, line);

        number++;
        if (wrong) {
            OPENSSL_cleanse(out, sizeof(*out));
            return hapax__fail(why, HAPAX_ERR_INVALID, "line %u: %s", number, wrong);
        }
        text.ptr += taken;
        text.len -= taken;
    }
    if (out->required && out->n == 0)
        return hapax__fail(why, HAPAX_ERR_INVALID, "it says sealed-only, and has no key");
    return HAPAX_ERR_NONE;
}

/* ---- the cipher ---------------------------------------------------------------------- */

struct derived {
    struct hapax_digest seal, nonce;
};

/* HKDF-Expand, two blocks. The keys of the file are uniform, so nothing is extracted before. */
static void derive(struct derived *out, const struct hapax__key *key, const struct hapax_id *id)
{
    const struct hapax_span secret = {key->bytes, sizeof(key->bytes)};
    const uint8_t counts[] = {1, 2};
    const struct hapax_span first[] = {
        hapax_str(label), {id->bytes, sizeof(id->bytes)}, {&counts[0], 1}};
    const struct hapax_span second[] = {{out->seal.bytes, sizeof(out->seal.bytes)},
                                        hapax_str(label),
                                        {id->bytes, sizeof(id->bytes)},
                                        {&counts[1], 1}};

    hapax__mac(&out->seal, secret, first, 3);
    hapax__mac(&out->nonce, secret, second, 4);
}

struct work {
    const uint8_t *key;
    const uint8_t *nonce;
    struct hapax_span bound;
    struct hapax_span headers, body; /* from */
    uint8_t *to; /* both, one behind the other */
    uint8_t *tag;
};

static bool update(EVP_CIPHER_CTX *ctx, uint8_t *to, struct hapax_span from)
{
    int n;

    return from.len == 0 || EVP_CipherUpdate(ctx, to, &n, from.ptr, (int)from.len) == 1;
}

/* Seals or opens. False: no memory, or what is opened is not what was sealed. */
static bool run(const struct work *work, bool seal)
{
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    uint8_t none[TAG_SIZE];
    bool done;
    int n;

    done = ctx &&
           EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, work->key, work->nonce, seal) == 1 &&
           update(ctx, NULL, work->bound) && update(ctx, work->to, work->headers) &&
           update(ctx, work->to + work->headers.len, work->body) &&
           (seal || EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, TAG_SIZE, work->tag) == 1) &&
           EVP_CipherFinal_ex(ctx, none, &n) == 1 &&
           (!seal || EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, TAG_SIZE, work->tag) == 1);
    EVP_CIPHER_CTX_free(ctx);
    if (!done)
        ERR_clear_error();
    return done;
}

/* Who asked, of an outcome that is bound to a claim; zeroed otherwise. */
struct asker {
    struct hapax_digest fingerprint, caller;
};

/* What is bound to an outcome beside itself. head: the sealed headers up to the nonce. */
static struct hapax_span bound_to(uint8_t out[BOUND_MAX], struct hapax_span head,
                                  const struct hapax_id *id, const struct asker *asker,
                                  const struct hapax_outcome *outcome, size_t headers_len)
{
    struct hapax__writer w = {out, BOUND_MAX};

    hapax__put(&w, head.ptr, head.len);
    hapax__put(&w, id->bytes, sizeof(id->bytes));
    hapax__put(&w, asker->fingerprint.bytes, sizeof(asker->fingerprint.bytes));
    hapax__put(&w, asker->caller.bytes, sizeof(asker->caller.bytes));
    hapax__put_number(&w, (uint64_t)outcome->status, 2);
    hapax__put_number(&w, outcome->body_kept, 1);
    hapax__put_number(&w, headers_len, 4);
    return (struct hapax_span){out, BOUND_MAX - w.left};
}

/* ---- sealing ------------------------------------------------------------------------- */

/* What an op has while its outcome is sealed. */
struct hapax__sealed {
    struct hapax_outcome plain;
    uint8_t bytes[];
};

static bool is_sealed(const struct hapax_outcome *outcome)
{
    return outcome->headers.len > 0 && outcome->headers.ptr[0] == 0;
}

/* Where nothing ran no store keeps the outcome, and where there are no bytes nothing is hidden. */
static bool has_to_be_sealed(const struct hapax_op *op)
{
    bool stores = op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_RESOLVE ||
                  op->kind == HAPAX_OP_IMPORT ||
                  (op->kind == HAPAX_OP_FAIL && (op->ran || op->as_unknown));

    return stores && op->outcome.headers.len + op->outcome.body.len > 0;
}

static size_t head_size(const struct hapax__key *key)
{
    return 3 + strlen(key->id) + sizeof(key->check) + 4 + 8;
}

static void seal(struct hapax__sealed *to, const struct hapax__key *key, struct hapax_op *op)
{
    const struct hapax_outcome *plain = &to->plain;
    size_t head = head_size(key);
    struct hapax__writer w = {to->bytes, head};
    uint8_t bytes[BOUND_MAX];
    struct hapax_digest nonce;
    struct asker asker = {{{0}}, {{0}}};
    struct derived keys;
    struct work work = {.key = keys.seal.bytes,
                        .nonce = to->bytes + head,
                        .headers = plain->headers,
                        .body = plain->body,
                        .tag = to->bytes + head + NONCE_SIZE,
                        .to = to->bytes + head + NONCE_SIZE + TAG_SIZE};

    hapax__put_number(&w, 0, 1);
    hapax__put_number(&w, FORM, 1);
    hapax__put_number(&w, strlen(key->id), 1);
    hapax__put(&w, key->id, strlen(key->id));
    hapax__put(&w, key->check, sizeof(key->check));
    hapax__put_number(&w, op->attempt, 4);
    hapax__put_number(&w, op->fence, 8);
    assert(w.left == 0);
    if (op->fence != 0)
        asker = (struct asker){op->fingerprint, op->caller};
    work.bound = bound_to(bytes, (struct hapax_span){to->bytes, head}, &op->id, &asker, plain,
                          plain->headers.len);
    derive(&keys, key, &op->id);
    hapax__mac(&nonce, (struct hapax_span){keys.nonce.bytes, sizeof(keys.nonce.bytes)},
               (const struct hapax_span[]){work.bound, plain->headers, plain->body}, 3);
    memcpy(to->bytes + head, nonce.bytes, NONCE_SIZE);
    op->sealed = run(&work, true) ? to : NULL;
    OPENSSL_cleanse(&keys, sizeof(keys));
    op->outcome.headers =
        (struct hapax_span){to->bytes, head + NONCE_SIZE + TAG_SIZE + plain->headers.len};
    op->outcome.body = (struct hapax_span){work.to + plain->headers.len, plain->body.len};
}

static enum hapax_error refuse(struct hapax_op *op, enum hapax_error error)
{
    op->verdict = HAPAX_NO_VERDICT;
    op->error = error;
    return error;
}

enum hapax_error hapax__seal(const struct hapax__keys *keys, struct hapax_op *op,
                             char text[HAPAX_TEXT_MAX])
{
    const struct hapax_outcome plain = op->outcome;
    struct hapax__sealed *to;
    size_t more;

    assert(!op->sealed);
    if (!keys || keys->n == 0 || !has_to_be_sealed(op))
        return HAPAX_ERR_NONE;
    more = head_size(&keys->key[0]) + NONCE_SIZE + TAG_SIZE;
    if (is_sealed(&plain))
        return refuse(op, hapax__fail(text, HAPAX_ERR_INVALID, "headers begin with a zero byte"));
    if (plain.headers.len + more > HAPAX_HEADERS_MAX)
        return refuse(op, hapax__fail(text, HAPAX_ERR_TOO_BIG,
                                      "headers of %zu bytes are over %zu, the most that are sealed",
                                      plain.headers.len, HAPAX_HEADERS_MAX - more));
    to = malloc(sizeof(*to) + more + plain.headers.len + plain.body.len);
    if (to) {
        to->plain = plain;
        seal(to, &keys->key[0], op);
    }
    if (op->sealed)
        return HAPAX_ERR_NONE;
    free(to);
    op->outcome = plain;
    return refuse(op, hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory to seal an outcome"));
}

/* ---- opening ------------------------------------------------------------------------- */

struct opened {
    struct hapax_span key_id, check, head, nonce, tag, headers;
    uint32_t attempt;
    uint64_t fence;
    unsigned form;
};

/* False: that is no sealed outcome of a form that is known. */
static bool take(struct opened *out, struct hapax_span headers)
{
    struct hapax__reader r = {headers.ptr, headers.len, false};

    memset(out, 0, sizeof(*out));
    (void)hapax__take_u8(&r);
    out->form = hapax__take_u8(&r);
    out->key_id = hapax__take(&r, hapax__take_u8(&r));
    out->check = hapax__take(&r, sizeof(((struct hapax__key *)NULL)->check));
    out->attempt = hapax__take_u32(&r);
    out->fence = hapax__take_u64(&r);
    out->head = (struct hapax_span){headers.ptr, headers.len - r.left};
    out->nonce = hapax__take(&r, NONCE_SIZE);
    out->tag = hapax__take(&r, TAG_SIZE);
    out->headers = (struct hapax_span){r.at, r.left};
    return !r.bad && out->form == FORM && is_key_id(out->key_id);
}

/* Sealed for this claim, as far as the two are known. An operator's RESOLVE has a fence of its own.
 */
static bool is_of(const struct opened *sealed, const struct hapax_record *record)
{
    if (sealed->fence == 0 || record->fence == 0 || record->resolved_us != 0)
        return true;
    return sealed->fence == record->fence && sealed->attempt == record->attempt;
}

static enum hapax_error open_with(const struct hapax__key *key, const struct opened *sealed,
                                  struct hapax_op *op, struct hapax_arena *arena)
{
    struct hapax_outcome *outcome = &op->record.outcome;
    const struct asker none = {{{0}}, {{0}}}, asked = {op->record.fingerprint, op->record.caller};
    const struct asker asker = sealed->fence != 0 ? asked : none;
    uint8_t *to = hapax__arena_alloc(arena, sealed->headers.len + outcome->body.len + 1);
    uint8_t bytes[BOUND_MAX], tag[TAG_SIZE];
    struct derived keys;
    struct work work = {
        .key = keys.seal.bytes,
        .nonce = sealed->nonce.ptr,
        .bound = bound_to(bytes, sealed->head, &op->id, &asker, outcome, sealed->headers.len),
        .headers = sealed->headers,
        .body = outcome->body,
        .to = to,
        .tag = tag};
    bool done;

    if (!to)
        return HAPAX_ERR_NOMEM;
    memcpy(tag, sealed->tag.ptr, sizeof(tag));
    derive(&keys, key, &op->id);
    done = run(&work, false);
    OPENSSL_cleanse(&keys, sizeof(keys));
    if (!done) {
        OPENSSL_cleanse(to, sealed->headers.len + outcome->body.len);
        return HAPAX_ERR_SEALED;
    }
    outcome->headers = (struct hapax_span){to, sealed->headers.len};
    outcome->body = (struct hapax_span){to + sealed->headers.len, outcome->body.len};
    return HAPAX_ERR_NONE;
}

/* Opens the outcome that the answer shows, which is sealed. */
static enum hapax_error open_shown(const struct hapax__keys *keys, struct hapax_op *op,
                                   struct hapax_arena *arena, char text[HAPAX_TEXT_MAX])
{
    const struct hapax__key *key;
    char id[HAPAX__KEY_ID_MAX + 1];
    struct opened sealed;
    enum hapax_error error;

    if (!take(&sealed, op->record.outcome.headers))
        return sealed.form > FORM
                   ? hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                                 "the outcome is sealed in the form %u, which this "
                                 "version does not know",
                                 sealed.form)
                   : hapax__fail(text, HAPAX_ERR_SEALED, "the seal of the outcome is damaged");
    assert(sealed.key_id.ptr && sealed.check.ptr);
    memcpy(id, sealed.key_id.ptr, sealed.key_id.len);
    id[sealed.key_id.len] = '\0';
    key = find(keys, sealed.key_id);
    if (!key)
        return hapax__fail(text, HAPAX_ERR_SEALED,
                           "the outcome is sealed by the key \"%s\", which %s (HAPAX_KEYS_FILE, "
                           "hapax_keys)",
                           id, keys && keys->n > 0 ? "is not in the keys file" : "was not given");
    if (memcmp(key->check, sealed.check.ptr, sizeof(key->check)) != 0)
        return hapax__fail(text, HAPAX_ERR_SEALED,
                           "the outcome is sealed by another key \"%s\" than the one in the keys "
                           "file",
                           id);
    error = is_of(&sealed, &op->record) ? open_with(key, &sealed, op, arena) : HAPAX_ERR_SEALED;
    if (error == HAPAX_ERR_SEALED)
        return hapax__fail(text, error,
                           "the outcome, sealed by the key \"%s\", was changed, or is of another "
                           "operation or attempt",
                           id);
    return error;
}

static void open_answer(const struct hapax__keys *keys, struct hapax_op *op,
                        struct hapax_arena *arena, char text[HAPAX_TEXT_MAX])
{
    struct hapax_outcome *shown = &op->record.outcome;
    enum hapax_error error = HAPAX_ERR_NONE;

    if (is_sealed(shown))
        error = open_shown(keys, op, arena, text);
    else if (keys && keys->required && shown->headers.len + shown->body.len > 0)
        error = hapax__fail(text, HAPAX_ERR_SEALED,
                            "the outcome is not sealed, and the keys file says sealed-only");
    if (error == HAPAX_ERR_NONE)
        return;
    shown->headers = shown->body = (struct hapax_span){NULL, 0};
    if (op->kind == HAPAX_OP_RESOLVE)
        return;
    op->verdict = HAPAX_NO_VERDICT;
    op->error = error;
    if (error == HAPAX_ERR_NOMEM) { /* the op may have been applied */
        (void)hapax__fail(text, error, "out of memory to open an outcome");
        op->error = HAPAX_ERR_INDETERMINATE;
    }
}

void hapax__unseal(const struct hapax__keys *keys, struct hapax_op *op, struct hapax_arena *arena,
                   char text[HAPAX_TEXT_MAX])
{
    struct hapax__sealed *sealed = op->sealed;
    const struct hapax_outcome sent = op->outcome;

    op->sealed = NULL;
    if (sealed)
        op->outcome = sealed->plain;
    if (op->verdict != HAPAX_NO_VERDICT) {
        if (sealed && hapax__same(sent.headers, op->record.outcome.headers) &&
            hapax__same(sent.body, op->record.outcome.body)) {
            op->record.outcome.headers = op->outcome.headers;
            op->record.outcome.body = op->outcome.body;
        } else {
            open_answer(keys, op, arena, text);
        }
    }
    free(sealed);
}

/* ---- of a handle --------------------------------------------------------------------- */

enum hapax_error hapax__store_keys(struct hapax_store *store, const struct hapax__keys *keys)
{
    struct hapax__sealing *sealing = store->sealing;

    if (store->type->keys)
        return store->type->keys(store, keys);
    if (!sealing) {
        sealing = calloc(1, sizeof(*sealing));
        if (sealing)
            sealing->ended = calloc(1, sizeof(*sealing->ended));
        if (!sealing || !sealing->ended) {
            free(sealing);
            return hapax_store_fail(store, HAPAX_ERR_NOMEM, "out of memory");
        }
        store->sealing = sealing;
    }
    sealing->keys = keys ? *keys : (struct hapax__keys){0};
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax_store_keys(struct hapax_store *store, struct hapax_span text)
{
    struct hapax__keys keys;
    enum hapax_error error = hapax__keys_read(&keys, text, store->text);

    if (error == HAPAX_ERR_NONE)
        error = hapax__store_keys(store, &keys);
    OPENSSL_cleanse(&keys, sizeof(keys));
    return error;
}

void hapax__sealing_free(struct hapax__sealing *sealing)
{
    if (!sealing)
        return;
    hapax__arena_release(sealing->ended);
    free(sealing->ended);
    OPENSSL_cleanse(sealing, sizeof(*sealing));
    free(sealing);
}
