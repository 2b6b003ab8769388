/* SPDX-License-Identifier: Apache-2.0
 *
 * The directives, and what each takes. All policies share one function: the directive hapax_NAME
 * sets the policy NAME by hapax_policy_set(). So a policy has one name, one syntax and one error
 * text everywhere.
 *
 * A wrong value fails `nginx -t`, with the directive's name and what is allowed. Stores are not
 * opened here: nginx must start while they are down.
 */

#include "ngx_http_hapax.h"

#include <ctype.h>


#define NGX_HTTP_HAPAX_SECRET_MAX   4096


/* the words that a directive takes, and how a message names them */
typedef struct {
    const char       *allowed;
    ngx_conf_enum_t   words[6];
} ngx_http_hapax_words_t;


static ngx_http_hapax_words_t  ngx_http_hapax_enable_words = {
    "on, off, shadow, required, or a variable",
    { { ngx_string("on"), NGX_HTTP_HAPAX_ON },
      { ngx_string("shadow"), NGX_HTTP_HAPAX_SHADOW },
      { ngx_string("off"), NGX_HTTP_HAPAX_OFF },
      { ngx_string("required"), NGX_HTTP_HAPAX_REQUIRED } }
};

static ngx_http_hapax_words_t  ngx_http_hapax_push_words = {
    "off, dapr, knative or sns",
    { { ngx_string("off"), NGX_HTTP_HAPAX_PUSH_OFF },
      { ngx_string("dapr"), NGX_HTTP_HAPAX_PUSH_DAPR },
      { ngx_string("knative"), NGX_HTTP_HAPAX_PUSH_KNATIVE },
      { ngx_string("sns"), NGX_HTTP_HAPAX_PUSH_SNS } }
};

static ngx_http_hapax_words_t  ngx_http_hapax_in_flight_words = {
    "409 or 429",
    { { ngx_string("409"), 409 },
      { ngx_string("429"), 429 } }
};

static ngx_http_hapax_words_t  ngx_http_hapax_class_words = {
    "final, not_run, failed or unknown, after the statuses",
    { { ngx_string("final"), HAPAX_CLASS_FINAL },
      { ngx_string("not_run"), HAPAX_CLASS_NOT_RUN },
      { ngx_string("failed"), HAPAX_CLASS_FAILED },
      { ngx_string("unknown"), HAPAX_CLASS_UNKNOWN } }
};

static ngx_http_hapax_words_t  ngx_http_hapax_fingerprint_words = {
    "method, host, uri, header:NAME, body, json, +/POINTER, -/POINTER, or off",
    { { ngx_string("method"), NGX_HTTP_HAPAX_FP_METHOD },
      { ngx_string("host"), NGX_HTTP_HAPAX_FP_HOST },
      { ngx_string("uri"), NGX_HTTP_HAPAX_FP_URI },
      { ngx_string("body"), NGX_HTTP_HAPAX_FP_BODY },
      { ngx_string("json"), NGX_HTTP_HAPAX_FP_JSON },
      { ngx_string("off"), NGX_HTTP_HAPAX_FP_OFF } }
};


static char *
ngx_http_hapax_refused(ngx_conf_t *cf, ngx_command_t *cmd, ngx_str_t *value,
    const char *allowed)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"%V\" does not take \"%V\": it takes %s", &cmd->name,
                       value, allowed);

    return NGX_CONF_ERROR;
}


static ngx_conf_enum_t *
ngx_http_hapax_word_of(ngx_http_hapax_words_t *words, ngx_str_t *value)
{
    ngx_conf_enum_t  *word;

    for (word = words->words; word->name.len; word++) {
        if (ngx_strcmp(value->data, word->name.data) == 0) {
            return word;
        }
    }

    return NULL;
}


/* ngx_conf_set_enum_slot(), with a message that names what is allowed */

static char *
ngx_http_hapax_set_word(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    u_char  *p = conf;

    ngx_str_t        *value;
    ngx_uint_t       *field;
    ngx_conf_enum_t  *word;

    field = (ngx_uint_t *) (p + cmd->offset);
    value = cf->args->elts;

    if (*field != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    word = ngx_http_hapax_word_of(cmd->post, &value[1]);

    if (word == NULL) {
        return ngx_http_hapax_refused(cf, cmd, &value[1],
                             ((ngx_http_hapax_words_t *) cmd->post)->allowed);
    }

    *field = word->value;

    return NGX_CONF_OK;
}


/* With a variable each request has a mode of its own. */

static char *
ngx_http_hapax_set_enable(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    ngx_str_t                   *value;
    ngx_command_t                variable;

    value = cf->args->elts;

    if (hlcf->enable != NGX_CONF_UNSET_UINT
        || ngx_http_script_variables_count(&value[1]) == 0)
    {
        return ngx_http_hapax_set_word(cf, cmd, conf);
    }

    hlcf->enable = NGX_HTTP_HAPAX_ON;
    variable = *cmd;
    variable.offset = offsetof(ngx_http_hapax_loc_conf_t, mode);

    return ngx_http_set_complex_value_slot(cf, &variable, conf);
}


static char *
ngx_http_hapax_set_store(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    char                 text[HAPAX_TEXT_MAX];
    u_char              *colon, scheme[32];
    ngx_str_t           *value, shown;
    struct hapax_store  *store;

    value = cf->args->elts;

    if (hlcf->uri.data) {
        return "is duplicate";
    }

    colon = ngx_strlchr(value[1].data, value[1].data + value[1].len, ':');

    if (colon == NULL || colon == value[1].data
        || colon - value[1].data > (ssize_t) sizeof(scheme) - 2)
    {
        hapax_store_shown(text, (char *) value[1].data);
        shown.data = (u_char *) text;
        shown.len = ngx_strlen(text);

        return ngx_http_hapax_refused(cf, cmd, &shown,
                       "the URI of a store, as unix:PATH of a keeper's socket");
    }

    hlcf->uri = value[1];

    if (ngx_strncmp(value[1].data, "rocksdb:", 8) == 0) {
        return NGX_CONF_OK;                    /* reached through its keeper */
    }

    /* checks the scheme alone: the store itself may be down now */

    *ngx_cpymem(scheme, value[1].data, colon + 1 - value[1].data) = '\0';

    if (hapax_store_open(&store, (char *) scheme, text) == HAPAX_ERR_NONE) {
        hapax_store_close(store);
        return NGX_CONF_OK;
    }

    if (ngx_strstr(text, "no known scheme") != NULL) {
        /* fails in the same way, and shows the whole URI */
        (void) hapax_store_open(&store, (char *) value[1].data, text);
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\": %s", &cmd->name,
                           text);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_hapax_cannot_use(ngx_conf_t *cf, ngx_command_t *cmd, const char *why)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\": cannot use \"%V\": %s",
                       &cmd->name, &value[1], why);

    return NGX_CONF_ERROR;
}


/*
 * Reads the file that the directive names, which only some may read. *n: a
 * newline at its end does not count.
 */

static char *
ngx_http_hapax_read_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    u_char buf[NGX_HTTP_HAPAX_SECRET_MAX + 2], ssize_t *n)
{
    ngx_fd_t         fd;
    ngx_str_t       *value;
    const char      *why;
    ngx_file_info_t  fi;

    value = cf->args->elts;

    if (ngx_conf_full_name(cf->cycle, &value[1], 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    fd = ngx_open_file(value[1].data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"%V\": cannot open \"%V\"", &cmd->name,
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    why = NULL;
    *n = ngx_read_fd(fd, buf, NGX_HTTP_HAPAX_SECRET_MAX + 2);

    if (ngx_fd_info(fd, &fi) == NGX_FILE_ERROR || (fi.st_mode & S_IROTH)) {
        why = "everybody can read it; chmod o-r it";
    }

    (void) ngx_close_file(fd);

    if (*n > 0 && buf[*n - 1] == '\n') {
        (*n)--;
    }

    if (*n <= 0) {
        why = "it is empty, or cannot be read";

    } else if (*n > NGX_HTTP_HAPAX_SECRET_MAX) {
        why = "it is over 4096 bytes";
    }

    return why ? ngx_http_hapax_cannot_use(cf, cmd, why) : NGX_CONF_OK;
}


static char *
ngx_http_hapax_set_secret(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    u_char    buf[NGX_HTTP_HAPAX_SECRET_MAX + 2];
    ssize_t   n;

    if (hlcf->secret.data) {
        return "is duplicate";
    }

    if (ngx_http_hapax_read_secret(cf, cmd, buf, &n) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    hlcf->secret.len = n;
    hlcf->secret.data = ngx_pnalloc(cf->pool, n);

    if (hlcf->secret.data == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memcpy(hlcf->secret.data, buf, n);
    explicit_bzero(buf, sizeof(buf));

    return NGX_CONF_OK;
}


/* hapax_secret_old FILE, or "none": there was no secret. */

static char *
ngx_http_hapax_set_secret_old(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    u_char      buf[NGX_HTTP_HAPAX_SECRET_MAX + 2];
    ssize_t     n;
    ngx_str_t  *value;

    value = cf->args->elts;

    if (hlcf->secret_old.data) {
        return "is duplicate";
    }

    if (ngx_strcmp(value[1].data, "none") == 0) {
        ngx_str_set(&hlcf->secret_old, "");
        return NGX_CONF_OK;
    }

    if (ngx_http_hapax_read_secret(cf, cmd, buf, &n) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    hlcf->secret_old.len = n;
    hlcf->secret_old.data = ngx_pnalloc(cf->pool, n);

    if (hlcf->secret_old.data == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memcpy(hlcf->secret_old.data, buf, n);
    explicit_bzero(buf, sizeof(buf));

    return NGX_CONF_OK;
}


static char *
ngx_http_hapax_set_keys(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    char               why[HAPAX_TEXT_MAX];
    u_char             buf[NGX_HTTP_HAPAX_SECRET_MAX + 2];
    ssize_t            n;
    enum hapax_error   error;
    struct hapax_span  text;

    if (hlcf->keys != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    if (ngx_http_hapax_read_secret(cf, cmd, buf, &n) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    hlcf->keys = ngx_palloc(cf->pool, sizeof(struct hapax__keys));
    if (hlcf->keys == NULL) {
        return NGX_CONF_ERROR;
    }

    text.ptr = buf;
    text.len = n;
    error = hapax__keys_read(hlcf->keys, text, why);
    explicit_bzero(buf, sizeof(buf));

    if (error != HAPAX_ERR_NONE) {
        return ngx_http_hapax_cannot_use(cf, cmd, why);
    }

    return hlcf->keys->n > 0 ? NGX_CONF_OK
                             : ngx_http_hapax_cannot_use(cf, cmd,
                                                         "it has no key");
}


static ngx_int_t
ngx_http_hapax_is_name(ngx_str_t *name)
{
    ngx_uint_t  i;

    for (i = 0; i < name->len; i++) {
        if ((name->data[i] < 'a' || name->data[i] > 'z')
            && (name->data[i] < 'A' || name->data[i] > 'Z')
            && (name->data[i] < '0' || name->data[i] > '9')
            && name->data[i] != '-')
        {
            return 0;
        }
    }

    return name->len > 0;
}


static char *
ngx_http_hapax_set_key_header(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    ngx_str_t  *value;

    value = cf->args->elts;

    if (hlcf->key_header.data) {
        return "is duplicate";
    }

    if (ngx_strcmp(value[1].data, "off") == 0) {
        ngx_str_set(&hlcf->key_header, "");
        return NGX_CONF_OK;
    }

    if (!ngx_http_hapax_is_name(&value[1])) {
        return ngx_http_hapax_refused(cf, cmd, &value[1],
                                "the name of a header, of A-Z a-z 0-9 and -");
    }

    hlcf->key_header = value[1];

    return NGX_CONF_OK;
}


static char *
ngx_http_hapax_set_methods(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    ngx_str_t    *value;
    ngx_uint_t    i, k;

    static const struct {
        const char  *name;
        ngx_uint_t   method;
    } methods[] = {
        { "GET", NGX_HTTP_GET },
        { "HEAD", NGX_HTTP_HEAD },
        { "POST", NGX_HTTP_POST },
        { "PUT", NGX_HTTP_PUT },
        { "DELETE", NGX_HTTP_DELETE },
        { "PATCH", NGX_HTTP_PATCH },
        { NULL, 0 }
    };

    value = cf->args->elts;

    if (hlcf->methods) {
        return "is duplicate";
    }

    for (i = 1; i < cf->args->nelts; i++) {

        for (k = 0; methods[k].name; k++) {
            if (ngx_strcasecmp(value[i].data, (u_char *) methods[k].name)
                == 0)
            {
                hlcf->methods |= methods[k].method;
                break;
            }
        }

        if (methods[k].name == NULL) {
            return ngx_http_hapax_refused(cf, cmd, &value[i],
                                     "POST, PATCH, PUT, DELETE, GET and HEAD");
        }
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_hapax_push_pointer(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_array_t **pointers, u_char *data, size_t len)
{
    const char         *why;
    struct hapax_span  *pointer;

    if (*pointers == NULL) {
        *pointers = ngx_array_create(cf->pool, 4, sizeof(struct hapax_span));
        if (*pointers == NULL) {
            return NGX_ERROR;
        }
    }

    if ((*pointers)->nelts == HAPAX__JSON_POINTERS_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" takes at most %d JSON pointers", &cmd->name,
                           HAPAX__JSON_POINTERS_MAX);
        return NGX_ERROR;
    }

    pointer = ngx_array_push(*pointers);
    if (pointer == NULL) {
        return NGX_ERROR;
    }

    pointer->ptr = data;
    pointer->len = len;

    if (!hapax__json_pointer_check(*pointer, &why)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" takes JSON pointers, as /order/id: \"%*s\": "
                           "%s", &cmd->name, len, data, why);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static char *
ngx_http_hapax_set_fingerprint(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    ngx_str_t               *value, *name;
    ngx_uint_t               i;
    ngx_conf_enum_t         *word;
    enum hapax__json_select  select;

    value = cf->args->elts;

    if (hlcf->fingerprint) {
        return "is duplicate";
    }

    for (i = 1; i < cf->args->nelts; i++) {

        word = ngx_http_hapax_word_of(&ngx_http_hapax_fingerprint_words,
                                      &value[i]);

        if (word) {
            hlcf->fingerprint |= word->value;

        } else if (value[i].len > sizeof("header:") - 1
                   && ngx_strncmp(value[i].data, "header:",
                                  sizeof("header:") - 1) == 0)
        {
            if (hlcf->fp_headers == NULL) {
                hlcf->fp_headers = ngx_array_create(cf->pool, 4,
                                                    sizeof(ngx_str_t));
                if (hlcf->fp_headers == NULL) {
                    return NGX_CONF_ERROR;
                }
            }

            name = ngx_array_push(hlcf->fp_headers);
            if (name == NULL) {
                return NGX_CONF_ERROR;
            }

            name->data = value[i].data + sizeof("header:") - 1;
            name->len = value[i].len - (sizeof("header:") - 1);
            ngx_strlow(name->data, name->data, name->len);
            hlcf->fingerprint |= NGX_HTTP_HAPAX_FP_HEADER;

        } else if (value[i].len > 1
                   && (value[i].data[0] == '+' || value[i].data[0] == '-')
                   && value[i].data[1] == '/')
        {
            select = value[i].data[0] == '+' ? HAPAX__JSON_INCLUDE
                                             : HAPAX__JSON_EXCLUDE;

            if (hlcf->pointers && select != hlcf->select) {
                return "takes pointers with + or with -, not both";
            }

            hlcf->select = select;
            hlcf->fingerprint |= NGX_HTTP_HAPAX_FP_JSON;

            if (ngx_http_hapax_push_pointer(cf, cmd, &hlcf->pointers,
                                            value[i].data + 1,
                                            value[i].len - 1)
                != NGX_OK)
            {
                return NGX_CONF_ERROR;
            }

        } else {
            return ngx_http_hapax_refused(cf, cmd, &value[i],
                                     ngx_http_hapax_fingerprint_words.allowed);
        }
    }

    if ((hlcf->fingerprint & NGX_HTTP_HAPAX_FP_OFF)
        && hlcf->fingerprint != NGX_HTTP_HAPAX_FP_OFF)
    {
        return "takes \"off\" alone";
    }

    if ((hlcf->fingerprint & NGX_HTTP_HAPAX_FP_BODY)
        && (hlcf->fingerprint & NGX_HTTP_HAPAX_FP_JSON))
    {
        return "takes \"body\" or JSON, not both";
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_hapax_set_caller(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    ngx_str_t  *value;

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "is empty: say \"none\" if all requests are one caller's";
    }

    if (value[1].len == 4 && ngx_strncmp(value[1].data, "none", 4) == 0) {
        hlcf->one_caller = 1;
    }

    return ngx_http_set_complex_value_slot(cf, cmd, conf);
}


static char *
ngx_http_hapax_set_key_from(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    value = cf->args->elts;

    if (hlcf->key_from != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    hlcf->key_from = NULL;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        return NGX_CONF_OK;
    }

    for (i = 1; i < cf->args->nelts; i++) {
        if (ngx_http_hapax_push_pointer(cf, cmd, &hlcf->key_from,
                                        value[i].data, value[i].len)
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_hapax_set_class(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    ngx_str_t                 *value, *word;
    ngx_uint_t                 i;
    const char                *why;
    ngx_conf_enum_t           *cls;
    struct hapax_span          text;
    struct hapax__class_rule  *rule;

    value = cf->args->elts;
    word = &value[cf->args->nelts - 1];

    cls = ngx_http_hapax_word_of(&ngx_http_hapax_class_words, word);

    if (cls == NULL) {
        return ngx_http_hapax_refused(cf, cmd, word,
                                      ngx_http_hapax_class_words.allowed);
    }

    if (hlcf->classes == NULL) {
        hlcf->classes = ngx_array_create(cf->pool, 4,
                                         sizeof(struct hapax__class_rule));
        if (hlcf->classes == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    for (i = 1; i < cf->args->nelts - 1; i++) {

        rule = ngx_array_push(hlcf->classes);
        if (rule == NULL) {
            return NGX_CONF_ERROR;
        }

        text.ptr = value[i].data;
        text.len = value[i].len;

        if (!hapax__class_rule_parse(rule, text, &why)) {
            return ngx_http_hapax_refused(cf, cmd, &value[i], why);
        }

        rule->cls = (enum hapax_class) cls->value;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_hapax_set_limit(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    ngx_str_t                   *value;
    ngx_uint_t                   i;
    const char                  *why;
    ngx_http_hapax_main_conf_t  *hmcf;

    value = cf->args->elts;

    if (hlcf->limits != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    hlcf->limits = NULL;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        return NGX_CONF_OK;
    }

    hlcf->limits = ngx_pcalloc(cf->pool, sizeof(struct hapax__limits));
    if (hlcf->limits == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {
        if (!hapax__limit_parse(hlcf->limits, (char *) value[i].data, &why)) {
            return ngx_http_hapax_refused(cf, cmd, &value[i], why);
        }
    }

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_hapax_module);
    hmcf->limits = 1;

    return NGX_CONF_OK;
}


static char *
ngx_http_hapax_set_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    u_char       *p = conf;

    ngx_str_t    *value, *name;
    ngx_uint_t    i;
    ngx_array_t **names;

    value = cf->args->elts;
    names = (ngx_array_t **) (p + cmd->offset);

    if (*names == NULL) {
        *names = ngx_array_create(cf->pool, 4, sizeof(ngx_str_t));
        if (*names == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    for (i = 1; i < cf->args->nelts; i++) {

        if (!ngx_http_hapax_is_name(&value[i])) {
            return ngx_http_hapax_refused(cf, cmd, &value[i],
                                          "names of headers");
        }

        name = ngx_array_push(*names);
        if (name == NULL) {
            return NGX_CONF_ERROR;
        }

        ngx_strlow(value[i].data, value[i].data, value[i].len);
        *name = value[i];

        if (cmd->offset != offsetof(ngx_http_hapax_loc_conf_t, keep)) {
            continue;
        }

        if (ngx_strcmp(name->data, "set-cookie") != 0
            && ngx_strcmp(name->data, "date") != 0)
        {
            return ngx_http_hapax_refused(cf, cmd, name,
                              "Set-Cookie and Date: others are stored, or "
                              "belong to one connection");
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_hapax_set_policy(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    char                       text[HAPAX_TEXT_MAX];
    ngx_str_t                 *value, name;
    ngx_uint_t                 i;
    struct hapax_policy        policy;
    ngx_http_hapax_setting_t  *setting;

    value = cf->args->elts;

    name.data = cmd->name.data + sizeof("hapax_") - 1;
    name.len = cmd->name.len - (sizeof("hapax_") - 1);

    if (hlcf->settings == NULL) {
        hlcf->settings = ngx_array_create(cf->pool, 4,
                                          sizeof(ngx_http_hapax_setting_t));
        if (hlcf->settings == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    setting = hlcf->settings->elts;

    for (i = 0; i < hlcf->settings->nelts; i++) {
        if (setting[i].name.data == name.data) {
            return "is duplicate";
        }
    }

    hapax_policy_init(&policy);

    if (hapax_policy_set(&policy, (char *) name.data, (char *) value[1].data,
                         text)
        != HAPAX_ERR_NONE)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\": %s", &cmd->name,
                           text);
        return NGX_CONF_ERROR;
    }

    if (ngx_array_push(hlcf->settings) == NULL) {
        return NGX_CONF_ERROR;
    }

    setting = hlcf->settings->elts;
    i = hlcf->settings->nelts - 1;

    if (ngx_strcmp(name.data, "profile") == 0) {
        /* the other directives of the level differ from it, wherever it stands */
        ngx_memmove(&setting[1], setting, i * sizeof(*setting));
        i = 0;
    }

    setting[i].name = name;
    setting[i].value = value[1];

    return NGX_CONF_OK;
}


/* The name is a label's value: letters, digits, and what needs no escape. */

static char *
ngx_http_hapax_set_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    size_t                       i;
    ngx_str_t                   *value;
    ngx_uint_t                   n;
    ngx_http_hapax_main_conf_t  *hmcf;

    if (hlcf->zone != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;
    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_hapax_module);

    for (i = 0; i < value[1].len; i++) {
        if (!isalnum(value[1].data[i]) && !strchr("_.-", value[1].data[i])) {
            break;
        }
    }

    if (i == 0 || i < value[1].len || i > 64) {
        return ngx_http_hapax_refused(cf, cmd, &value[1],
                                      "a name of 1 to 64 letters, digits, _ . "
                                      "and -");
    }

    for (n = 1; n < hmcf->nzones; n++) {
        if (hmcf->zones[n].name.len == value[1].len
            && ngx_memcmp(hmcf->zones[n].name.data, value[1].data,
                          value[1].len)
               == 0)
        {
            break;
        }
    }

    if (n == NGX_HTTP_HAPAX_ZONES) {
        return "is given with more than 63 names";
    }

    hmcf->zones[n].name = value[1];
    hmcf->nzones = ngx_max(hmcf->nzones, n + 1);
    hlcf->zone = &hmcf->zones[n];

    return NGX_CONF_OK;
}


#define ngx_http_hapax_directive(name, args, set, field, post)                \
    { ngx_string(name),                                                       \
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|args,            \
      set,                                                                    \
      NGX_HTTP_LOC_CONF_OFFSET,                                               \
      offsetof(ngx_http_hapax_loc_conf_t, field),                             \
      post }

#define ngx_http_hapax_policy(name)                                           \
    ngx_http_hapax_directive("hapax_" name, NGX_CONF_TAKE1,                   \
                             ngx_http_hapax_set_policy, settings, NULL)


ngx_command_t  ngx_http_hapax_commands[] = {

    ngx_http_hapax_directive("hapax", NGX_CONF_TAKE1,
        ngx_http_hapax_set_enable, enable, &ngx_http_hapax_enable_words),
    ngx_http_hapax_directive("hapax_store", NGX_CONF_TAKE1,
        ngx_http_hapax_set_store, uri, NULL),
    ngx_http_hapax_directive("hapax_secret", NGX_CONF_TAKE1,
        ngx_http_hapax_set_secret, secret, NULL),
    ngx_http_hapax_directive("hapax_secret_old", NGX_CONF_TAKE1,
        ngx_http_hapax_set_secret_old, secret_old, NULL),
    ngx_http_hapax_directive("hapax_keys", NGX_CONF_TAKE1,
        ngx_http_hapax_set_keys, keys, NULL),
    ngx_http_hapax_directive("hapax_zone", NGX_CONF_TAKE1,
        ngx_http_hapax_set_zone, zone, NULL),
    ngx_http_hapax_directive("hapax_key_header", NGX_CONF_TAKE1,
        ngx_http_hapax_set_key_header, key_header, NULL),
    ngx_http_hapax_directive("hapax_key_from", NGX_CONF_1MORE,
        ngx_http_hapax_set_key_from, key_from, NULL),
    ngx_http_hapax_directive("hapax_scope", NGX_CONF_TAKE1,
        ngx_http_set_complex_value_slot, scope, NULL),
    ngx_http_hapax_directive("hapax_owner", NGX_CONF_TAKE1,
        ngx_http_set_complex_value_slot, owner, NULL),
    ngx_http_hapax_directive("hapax_caller", NGX_CONF_TAKE1,
        ngx_http_hapax_set_caller, caller, NULL),
    ngx_http_hapax_directive("hapax_methods", NGX_CONF_1MORE,
        ngx_http_hapax_set_methods, methods, NULL),
    ngx_http_hapax_directive("hapax_fingerprint", NGX_CONF_1MORE,
        ngx_http_hapax_set_fingerprint, fingerprint, NULL),
    ngx_http_hapax_directive("hapax_class", NGX_CONF_2MORE,
        ngx_http_hapax_set_class, classes, NULL),
    ngx_http_hapax_directive("hapax_limit", NGX_CONF_1MORE,
        ngx_http_hapax_set_limit, limits, NULL),
    ngx_http_hapax_directive("hapax_hide_header", NGX_CONF_1MORE,
        ngx_http_hapax_set_names, hide, NULL),
    ngx_http_hapax_directive("hapax_store_header", NGX_CONF_1MORE,
        ngx_http_hapax_set_names, keep, NULL),
    ngx_http_hapax_directive("hapax_in_flight_status", NGX_CONF_TAKE1,
        ngx_http_hapax_set_word, in_flight_status,
        &ngx_http_hapax_in_flight_words),
    ngx_http_hapax_directive("hapax_push", NGX_CONF_TAKE1,
        ngx_http_hapax_set_word, push, &ngx_http_hapax_push_words),
    ngx_http_hapax_directive("hapax_problem_base", NGX_CONF_TAKE1,
        ngx_conf_set_str_slot, problem_base, NULL),
    ngx_http_hapax_directive("hapax_problem_template", NGX_CONF_TAKE1,
        ngx_http_hapax_set_template, problem_template, NULL),
    ngx_http_hapax_directive("hapax_reconcile", NGX_CONF_TAKE1,
        ngx_http_set_complex_value_slot, reconcile, NULL),

    { ngx_string("hapax_held_max"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(ngx_http_hapax_main_conf_t, held_max),
      NULL },

    { ngx_string("hapax_traces"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(ngx_http_hapax_main_conf_t, traces),
      NULL },

    { ngx_string("hapax_events"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_hapax_set_events,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("hapax_limit_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(ngx_http_hapax_main_conf_t, limit_zone_size),
      NULL },

    { ngx_string("hapax_status"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_hapax_status,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("hapax_problems"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_hapax_set_problems,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    ngx_http_hapax_policy("profile"),
    ngx_http_hapax_policy("lease"),
    ngx_http_hapax_policy("run_max"),
    ngx_http_hapax_policy("retention"),
    ngx_http_hapax_policy("retention_4xx"),
    ngx_http_hapax_policy("retention_failed"),
    ngx_http_hapax_policy("tombstone"),
    ngx_http_hapax_policy("wait"),
    ngx_http_hapax_policy("timeout"),
    ngx_http_hapax_policy("save_wait"),
    ngx_http_hapax_policy("on_expired"),
    ngx_http_hapax_policy("on_failed"),
    ngx_http_hapax_policy("on_store_error"),
    ngx_http_hapax_policy("key"),
    ngx_http_hapax_policy("key_min"),
    ngx_http_hapax_policy("owner_required"),
    ngx_http_hapax_policy("key_expires"),
    ngx_http_hapax_policy("attempts_max"),
    ngx_http_hapax_policy("max_request"),
    ngx_http_hapax_policy("max_response"),
    ngx_http_hapax_policy("rerun_completed"),
    ngx_http_hapax_policy("pass_token"),

      ngx_null_command
};
