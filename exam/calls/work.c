// Work for SQLite: what `cargo xtask exam calls` has recorded, and what callgrind counts. The first argument is how many rows there are.
#include <stdio.h>
#include <stdlib.h>
#include "sqlite3.h"

static int row(void *count, int columns, char **values, char **names)
{
    (void)names;
    ++*(int *)count;
    printf("%s%s", columns > 0 && values[0] ? values[0] : "-", *(int *)count % 8 ? " " : "\n");
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const work[] = {
        "create table word(id integer primary key, text text, length int)",
        "with recursive c(x) as (select 1 union all select x + 1 from c where x < %d)"
        " insert into word(text, length) select substr(hex(x * 7919 %% 10007), 1, 3 + x %% 5), 3 + x %% 5 from c",
        "create index by_text on word(text, length)",
        "select text, count(*), sum(length) from word group by text order by 2 desc, 1 limit 20",
        "select a.text from word a join word b on a.text = b.text and a.id < b.id order by a.id limit 30",
        "update word set length = length + 1 where id %% 3 = 0",
        "delete from word where text like '%%9%%'",
        "select upper(text) || '-' || length from word where text glob '3*' order by length desc, text limit 24",
    };
    sqlite3 *db;
    int count = 0, rows = argc > 1 ? atoi(argv[1]) : 1000;
    if (sqlite3_open(":memory:", &db))
        return 2;
    for (unsigned i = 0; i < sizeof work / sizeof *work; i++) {
        char sql[512], *error;
        snprintf(sql, sizeof sql, work[i], rows);
        if (sqlite3_exec(db, sql, row, &count, &error)) {
            fprintf(stderr, "%s: %s\n", sql, error);
            return 1;
        }
    }
    printf("\n%d rows\n", count);
    return sqlite3_close(db);
}
