/* SPDX-License-Identifier: Apache-2.0
 *
 * The linker sends calls of malloc() to __wrap_malloc() and gives the real one as __real_malloc()
 * (ld --wrap). An LD_PRELOAD library was not taken: it would fail cmocka and the C library too, and
 * it does not go together with AddressSanitizer.
 */
#include "oom.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t count;
static atomic_uint_fast64_t fail_at;
static atomic_bool fail_forever;
static atomic_int_fast64_t live;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *ptr, size_t size);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void __real_free(void *ptr);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *ptr, size_t size);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
void __wrap_free(void *ptr);

void oom_fail_at(uint64_t n, bool forever)
{
    atomic_store(&fail_at, 0);
    atomic_store(&count, 0);
    atomic_store(&fail_forever, forever);
    atomic_store(&fail_at, n);
}

uint64_t oom_count(void)
{
    return atomic_load(&count);
}

int64_t oom_live(void)
{
    return atomic_load(&live);
}

static bool fails(void)
{
    uint64_t number = atomic_fetch_add(&count, 1) + 1;
    uint64_t at = atomic_load(&fail_at);

    if (at == 0 || number < at || (number > at && !atomic_load(&fail_forever)))
        return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *ptr)
{
    if (ptr)
        atomic_fetch_add(&live, 1);
    return ptr;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *ptr, size_t size)
{
    void *moved;

    if (fails())
        return NULL;
    moved = __real_realloc(ptr, size);
    return ptr ? moved : counted(moved);
}

char *__wrap_strdup(const char *s)
{
    return fails() ? NULL : counted(__real_strdup(s));
}

char *__wrap_strndup(const char *s, size_t n)
{
    return fails() ? NULL : counted(__real_strndup(s, n));
}

void __wrap_free(void *ptr)
{
    if (ptr)
        atomic_fetch_sub(&live, 1);
    __real_free(ptr);
}
