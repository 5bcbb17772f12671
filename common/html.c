/* html.c: escaping and the skeleton of a page. */
#include "common/html.h"

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--muted:#5c6670;--line:#d5dae0;"
    "--shade:#f4f6f8;--mark:#ffe58a;--good:#17693a;--bad:#a8261d;--s0:#1f5fbf;--s1:#c2570c;"
    "--s2:#1e7d4f;--s3:#8a3fa8;--s4:#a8261d;--s5:#0b7285;--s6:#7a6200;--s7:#b0327a}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e8ec;--muted:#9aa5b1;"
    "--line:#363d46;--shade:#1d2127;--mark:#6b5600;--good:#6fcf97;--bad:#ff8a80;--s0:#7fb0ff;"
    "--s1:#ffab70;--s2:#7fd6a6;--s3:#d3a4f0;--s4:#ff8a80;--s5:#66d0e3;--s6:#e0c65a;--s7:#f59ac8}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;padding:1rem;max-width:72rem;background:var(--bg);color:var(--fg);"
    "font:1rem/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.25rem;margin-top:2rem}h3{font-size:1rem}\n"
    ".scroll{overflow-x:auto;margin:1rem 0}\n"
    "table{border-collapse:collapse;min-width:50%}caption{text-align:left;color:var(--muted)}\n"
    "th,td{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:left;"
    "vertical-align:top}\n"
    "th{border-bottom-width:2px}th[title],span[title]{text-decoration:underline dotted}\n"
    "pre span[title]{text-decoration:none}td:first-child{min-width:8rem}\n"
    "th[aria-sort=ascending]::after{content:' \\2191'}"
    "th[aria-sort=descending]::after{content:' \\2193'}\n"
    ".number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    ".good{color:var(--good)}.bad{color:var(--bad)}.muted{color:var(--muted)}\n"
    "pre,code{font-family:ui-monospace,monospace;font-size:.9em}\n"
    "pre{background:var(--shade);padding:.7rem;white-space:pre-wrap;overflow-wrap:anywhere}\n"
    "h1,h2,h3,p,li,summary{overflow-wrap:anywhere}\n"
    "mark{background:var(--mark);color:inherit}\n"
    "details{margin:1rem 0}summary{cursor:pointer}\n"
    "svg{max-width:100%;height:auto;display:block}svg text{fill:currentColor}\n";

/* Numbers by their first figure, words by their letters, what is neither last. */
static const char sort_script[] =
    "<script>\n"
    "for(const t of document.querySelectorAll('table')){const heads=[...t.tHead.rows[0].cells];\n"
    "heads.forEach((h,i)=>{h.tabIndex=0;h.style.cursor='pointer';\n"
    "const go=()=>{const up=h.getAttribute('aria-sort')!=='ascending';\n"
    "heads.forEach(o=>o.removeAttribute('aria-sort'));\n"
    "h.setAttribute('aria-sort',up?'ascending':'descending');\n"
    "const key=r=>r.cells[i]?r.cells[i].textContent.trim():'';\n"
    "const order=(a,b)=>{const x=key(a),y=key(b),p=parseFloat(x),q=parseFloat(y);\n"
    "if(isNaN(p)!==isNaN(q))return isNaN(p)?1:-1;\n"
    "const d=isNaN(p)?(x<y?-1:x>y?1:0):p-q;return up?d:-d};\n"
    "t.tBodies[0].append(...[...t.tBodies[0].rows].sort(order))};\n"
    "h.addEventListener('click',go);\n"
    "h.addEventListener('keydown',e=>{if(e.key==='Enter')go()})})}\n"
    "</script>\n";

static const char *entity(char c)
{
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return NULL;
    }
}

static void put_code_point(struct strbuf *b, uint32_t cp)
{
    char bytes[4];
    strbuf_append(b, bytes, (size_t)str_utf8_put(bytes, cp));
}

/* Escapes well-formed text. */
static void escape_valid(struct strbuf *b, const char *s, const char *end)
{
    const char *from = s;
    while (s < end) {
        const char *at = s, *name = entity(*s);
        uint32_t cp = str_utf8_next(&s);
        uint32_t shown = 0;
        if ((cp < 0x20 && cp != '\t' && cp != '\n') || cp == 0x7f)
            shown = cp == 0x7f ? 0x2421 : 0x2400 + cp;
        else if ((cp >= 0x80 && cp < 0xa0) || cp == 0xfffe || cp == 0xffff)
            shown = 0xfffd; /* XML allows the last two nowhere */
        if (!name && !shown)
            continue;
        strbuf_append(b, from, (size_t)(at - from));
        if (name)
            strbuf_puts(b, name);
        else
            put_code_point(b, shown);
        from = s;
    }
    strbuf_append(b, from, (size_t)(end - from));
}

void html_escape(struct strbuf *b, const char *s, size_t len)
{
    while (len) {
        size_t valid = str_utf8_valid(s, len);
        escape_valid(b, s, s + valid);
        if (valid < len) {
            put_code_point(b, 0xfffd);
            valid++;
        }
        s += valid;
        len -= valid;
    }
}

void html_text(struct strbuf *b, const char *s)
{
    html_escape(b, s, strlen(s));
}

void html_page_begin(struct strbuf *b, const char *title)
{
    strbuf_puts(b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                   "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                   "<title>");
    html_text(b, title);
    strbuf_puts(b, "</title>\n<style>\n");
    strbuf_puts(b, style);
    strbuf_puts(b, "</style>\n</head>\n<body>\n<h1>");
    html_text(b, title);
    strbuf_puts(b, "</h1>\n");
}

void html_sort_script(struct strbuf *b)
{
    strbuf_puts(b, sort_script);
}

void html_page_end(struct strbuf *b)
{
    strbuf_puts(b, "</body>\n</html>\n");
}

void html_heading(struct strbuf *b, int level, const char *id, const char *text)
{
    strbuf_printf(b, "<h%d", level);
    if (id) {
        strbuf_puts(b, " id=\"");
        html_text(b, id);
        strbuf_putc(b, '"');
    }
    strbuf_putc(b, '>');
    html_text(b, text);
    strbuf_printf(b, "</h%d>\n", level);
}

void html_paragraph(struct strbuf *b, const char *text)
{
    strbuf_puts(b, "<p>");
    html_text(b, text);
    strbuf_puts(b, "</p>\n");
}

void html_fold_begin(struct strbuf *b, const char *summary)
{
    strbuf_puts(b, "<details><summary>");
    html_text(b, summary);
    strbuf_puts(b, "</summary>\n");
}

void html_fold_end(struct strbuf *b)
{
    strbuf_puts(b, "</details>\n");
}

void html_table_begin(struct strbuf *b, const char *caption, const struct html_column *columns,
                      size_t n)
{
    strbuf_puts(b, "<div class=\"scroll\"><table>\n");
    if (caption) {
        strbuf_puts(b, "<caption>");
        html_text(b, caption);
        strbuf_puts(b, "</caption>\n");
    }
    strbuf_puts(b, "<thead><tr>");
    for (size_t i = 0; i < n; i++) {
        strbuf_puts(b, "<th scope=\"col\"");
        strbuf_puts(b, columns[i].number ? " class=\"number\"" : "");
        if (columns[i].help) {
            strbuf_puts(b, " title=\"");
            html_text(b, columns[i].help);
            strbuf_putc(b, '"');
        }
        strbuf_putc(b, '>');
        html_text(b, columns[i].name);
        strbuf_puts(b, "</th>");
    }
    strbuf_puts(b, "</tr></thead>\n<tbody>\n");
}

void html_row_begin(struct strbuf *b)
{
    strbuf_puts(b, "<tr>");
}

void html_cell(struct strbuf *b, const char *text)
{
    strbuf_puts(b, "<td>");
    html_text(b, text);
    strbuf_puts(b, "</td>");
}

void html_cell_number(struct strbuf *b, double v, int digits)
{
    html_cell_raw_begin(b, "number");
    strbuf_put_number(b, v, digits);
    html_cell_raw_end(b);
}

void html_cell_int(struct strbuf *b, int64_t v)
{
    html_cell_raw_begin(b, "number");
    strbuf_printf(b, "%lld", (long long)v);
    html_cell_raw_end(b);
}

void html_cell_raw_begin(struct strbuf *b, const char *class_name)
{
    strbuf_puts(b, "<td");
    if (*class_name) {
        strbuf_puts(b, " class=\"");
        html_text(b, class_name);
        strbuf_putc(b, '"');
    }
    strbuf_putc(b, '>');
}

void html_cell_raw_end(struct strbuf *b)
{
    strbuf_puts(b, "</td>");
}

void html_row_end(struct strbuf *b)
{
    strbuf_puts(b, "</tr>\n");
}

void html_table_end(struct strbuf *b)
{
    strbuf_puts(b, "</tbody></table></div>\n");
}
