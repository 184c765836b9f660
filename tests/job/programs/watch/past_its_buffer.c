// An operator's kernel with the mistake to be found: it writes `too_many` elements more than it was given.
void shift(float* values, long count, long too_many) {
    for (long i = 0; i < count + too_many; ++i) values[i] += 1.0f;
}
