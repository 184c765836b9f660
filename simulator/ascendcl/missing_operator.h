// What aclAppLog tells missing_operator.cpp: the format and arguments of a log line.
#pragma once
#include <cstdarg>

void note_missing_operator(const char* format, va_list arguments);
