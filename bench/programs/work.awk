# An interpreter at work: loops, strings, arrays. Its length is that of n.
BEGIN {
    for (i = 0; i < n; i++) {
        key = "k" (i % 997)
        count[key] += i % 7
        sum += length(key) * count[key]
        if (substr(key, 2, 1) == "3")
            threes++
    }
    print sum, threes
}
