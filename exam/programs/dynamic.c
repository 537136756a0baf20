/* A dynamically linked program: the loader, lazy binding, library callbacks, the string functions chosen at load time. */
#include <ctype.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int seen;

static int by_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static int compare_node(const void *left, const void *right)
{
    return strcmp(left, right);
}

static void visit(const void *node, VISIT order, int depth)
{
    (void)node;
    if (order == postorder || order == leaf)
        seen += depth + 1;
}

static void at_end(void)
{
    puts("at exit");
}

int main(void)
{
    char *words[] = {"pear", "apple", "quince", "fig", "olive", "cherry", "medlar", "plum", "date", "sloe"};
    size_t count = sizeof words / sizeof words[0];
    void *tree = NULL;

    atexit(at_end);
    qsort(words, count, sizeof words[0], by_text);
    for (size_t i = 0; i < count; i++)
        tsearch(words[i], &tree, compare_node);
    twalk(tree, visit);

    char line[300] = "";
    for (size_t i = 0; i < count; i++) {
        strcat(line, words[i]);
        strcat(line, ",");
    }
    for (char *c = line; *c; c++)
        *c = (char)toupper((unsigned char)*c);
    char *copy = strdup(line);
    memmove(copy + 3, copy, 40);
    printf("%s %d %g %ld %s\n", line, seen, strtod("2.5e3", NULL), strtol("-77", NULL, 8), strstr(line, "OLIVE"));
    printf("%s\n", copy);
    free(copy);
    return 0;
}
