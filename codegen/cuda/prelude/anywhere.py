"""Device functions for vectors that begin at any element of an array, whose start is aligned."""

from .math import DEVICE

_HEAD = f"template <int N, typename T, typename I, typename S>\n{DEVICE}"

FUNCTIONS: dict[str, str] = {
    "words_from": f"""
// Four of eight words, from a byte on.
template <int Bytes>
{DEVICE} Pack<unsigned, 4> words_from(const Pack<unsigned, 4>& low, const Pack<unsigned, 4>& high,
                                       int byte) {{
    unsigned pairs[6], words[5];
#pragma unroll
    for (int n = 0; n < 6; ++n) {{
        const unsigned word = n < 4 ? low.item[n] : high.item[n - 4];
        const unsigned further = n < 2 ? low.item[n + 2] : high.item[n - 2];
        pairs[n] = byte & 8 ? further : word;
    }}
#pragma unroll
    for (int n = 0; n < 5; ++n) words[n] = byte & 4 ? pairs[n + 1] : pairs[n];
    Pack<unsigned, 4> found;
#pragma unroll
    for (int n = 0; n < 4; ++n) {{
        const unsigned long long both = (unsigned long long)words[n + 1] << 32 | words[n];
        found.item[n] = Bytes < 4 ? unsigned(both >> byte % 4 * 8) : words[n];
    }}
    return found;
}}""",
    "Around": """
// The two aligned vectors in which one lies that begins anywhere.
struct Around {
    Pack<unsigned, 4> low, high;
};""",
    "lies_inside": f"""
// Whether an array of `size` elements has both of the vectors of N in which one lies.
template <int N, typename I, typename S>
{DEVICE} bool lies_inside(I place, S size) {{
    const I start = place & ~I(N - 1);
    return start >= 0 && start <= I(size) - 2 * N;
}}""",
    "vectors_around": f"""
// Without a branch, after which loads would wait for each other: where the array does not have
// both, its first.
{_HEAD} Around vectors_around(const T* values, I place, S size) {{
    const bool inside = lies_inside<N>(place, size);
    const I shift = place & I(N - 1);
    const Pack<unsigned, 4>* const first =
        reinterpret_cast<const Pack<unsigned, 4>*>(values + (inside ? place - shift : 0));
    return {{first[0], first[inside && shift]}};
}}""",
    "words_around": f"""
// The words from a place on.
template <int N, typename T, typename I>
{DEVICE} Pack<unsigned, 4> words_around(const Around& around, I place) {{
    return words_from<sizeof(T)>(around.low, around.high, int(place & I(N - 1)) * sizeof(T));
}}""",
    "words_at_end": f"""
// The same where so many elements are wanted: not a vector, or the array ends within two. The bytes
// of the others are zero.
{_HEAD} Pack<unsigned, 4> words_at_end(const Pack<unsigned, 4>& around, const T* values, I place,
                                       S size, int count) {{
    Pack<unsigned, 4> words = around;
    const int wanted = count * int(sizeof(T));
    if (!lies_inside<N>(place, size)) {{
        const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(values + place);
#pragma unroll
        for (int n = 0; n < 4; ++n) {{
            words.item[n] = 0;
            for (int b = 4 * n; b < min(wanted, 4 * n + 4); ++b)
                words.item[n] |= unsigned(bytes[b]) << b % 4 * 8;
        }}
    }} else if (count < N) {{
#pragma unroll
        for (int n = 0; n < 4; ++n)
            words.item[n] &= unsigned((1ull << min(max(wanted - 4 * n, 0), 4) * 8) - 1);
    }}
    return words;
}}""",
    "store_some": f"""
// Those of an aligned vector's N elements from one on and before another.
template <int N, typename T>
{DEVICE} void store_some(T* start, const Pack<unsigned, 4>& words, int from, int to) {{
    if (from <= 0 && to >= N) {{
        *reinterpret_cast<Pack<unsigned, 4>*>(start) = words;
    }} else {{
        const Pack<T, N> items = *reinterpret_cast<const Pack<T, N>*>(&words);
#pragma unroll
        for (int e = 0; e < N; ++e)
            if (e >= from && e < to) start[e] = items.item[e];
    }}
}}""",
    "store_between": f"""
// Of a row, of which so many elements are wanted, those that follow `after` of it: they lie in two
// vectors, which end and begin there. What is written is the aligned vector at or before the place.
template <int N, typename T, typename I>
{DEVICE} void store_between(T* values, const Pack<unsigned, 4>& low, const Pack<unsigned, 4>& high,
                             int after, int count, I place) {{
    const int shift = int(place & I(N - 1));
    auto moved = high;
    if (shift) moved = words_from<sizeof(T)>(low, high, (N - shift) * sizeof(T));
    const int to = count - after + shift;
    store_some<N>(values + (place - shift), moved, after ? 0 : shift, to);
}}""",
    "hand_on": f"""
// What the last lane of a warp has, for the first lane of the next to take.
{DEVICE} void hand_on(Pack<unsigned, 4>* hand, const Pack<unsigned, 4>& words) {{
    if (threadIdx.x % 32 == 31) *hand = words;
}}""",
    "store_anywhere": f"""
// Each of `Lanes` lanes in a row has the elements that follow those of the lane before, or, the
// first of them, of the lane that handed on its own; so many of its elements are wanted. It writes
// an aligned vector, which begins with elements of that lane. `first`: there is none before;
// `last`: there is none after.
template <int Lanes, int N, typename T, typename I>
{DEVICE} void store_anywhere(T* values, const Pack<unsigned, 4>& words, int count, I place,
                              const Pack<unsigned, 4>* hand, bool first, bool last) {{
    Pack<unsigned, 4> before;
#pragma unroll
    for (int n = 0; n < 4; ++n) before.item[n] = lane_before(words.item[n], 1);
    if (threadIdx.x % Lanes == 0 && !first) before = *hand;
    if (count <= 0) return;
    const int shift = int(place & I(N - 1));
    auto moved = words;
    if (shift) moved = words_from<sizeof(T)>(before, words, (N - shift) * sizeof(T));
    store_some<N>(values + (place - shift), moved, first ? shift : 0, shift + count);
    if (last || count <= N) {{  // no other lane writes the rest
        const Pack<T, N> items = *reinterpret_cast<const Pack<T, N>*>(&words);
#pragma unroll
        for (int e = 0; e < N; ++e)
            if (e >= N - shift && e < count) values[place + e] = items.item[e];
    }}
}}""",
}
