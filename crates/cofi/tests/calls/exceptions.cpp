// Exceptions: through frames with something to clean up, caught at other levels of a recursion, thrown again, out of constructors.
#include "log.h"
#include <stdexcept>
#include <string>

FUNCTION static int leaf(int x) { return x + 1; }
struct Guard {
    int n;
    FUNCTION explicit Guard(int n) : n(n) { leaf(n); }
    FUNCTION ~Guard() { leaf(n); }
};
FUNCTION static int throws(int n) { if (n >= 0) throw std::runtime_error("no"); return n; }
FUNCTION static int cleans(int n) { Guard guard(n); return n ? cleans(n - 1) + 1 : throws(n); }
FUNCTION static int catches(int n) {
    try { return cleans(n); } catch (const std::runtime_error &) { return leaf(n); }
}
FUNCTION static int again(int n) {
    try { return cleans(n); } catch (...) { leaf(n); throw; }
}
FUNCTION static int outer(int n) {
    try { return again(n); } catch (const std::exception &error) { return leaf((int)std::string(error.what()).size()); }
}
// Only the outermost of a recursion catches: the others call from elsewhere.
FUNCTION static int levels(int n) {
    if (n == 3) {
        try { return levels(n - 1); } catch (int value) { return leaf(value); }
    }
    if (n == 0) throw 5;
    return levels(n - 1) + 1;
}
FUNCTION int main() {
    int sum = 0;
    for (int i = 0; i < 3; i++) sum += catches(i) + outer(i) + levels(3) + leaf(i);
    printf("%d\n", sum);
    write_log();
    return 0;
}
