/* yaml.h: YAML bound to C structs by a libcyaml schema, with errors that say where.
 *
 * One document per text, at most 1 MiB, no anchors and no aliases, no key twice, no key that the
 * schema lacks. Every fault is ERR_INPUT "<name>: line 7, column 3: unknown key 'bitz'; did you
 * mean 'bits'?". What was loaded belongs to the caller, who gives it to yaml_release with the same
 * schema.
 */
#ifndef ASSAY_COMMON_YAML_H
#define ASSAY_COMMON_YAML_H

#include <cyaml/cyaml.h>

#include "common/err.h"

#define YAML_BYTES_MAX ((size_t)1 << 20)

/* `name` is for errors. `schema` is a mapping with CYAML_FLAG_POINTER; *out gets the new struct. */
MUST_USE enum err_code yaml_load(const char *text, size_t len, const char *name,
                                 const cyaml_schema_value_t *schema, void **out, struct err *e);
MUST_USE enum err_code yaml_read(const char *path, const cyaml_schema_value_t *schema, void **out,
                                 struct err *e);
/* NULL is fine. (libyaml itself exports a yaml_free, hence this name.) */
void yaml_release(const cyaml_schema_value_t *schema, void *data);

/* Lines (from 1) on which the items of the root's sequence `key` start, in their order; *n is how
 * many items there are, of which the first max are written. No such key: *n is 0. */
MUST_USE enum err_code yaml_item_lines(const char *text, size_t len, const char *name,
                                       const char *key, int64_t *lines, size_t max, size_t *n,
                                       struct err *e);

#endif
