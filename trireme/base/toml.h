#pragma once
// toml++ without its assertions: version 3.3 asserts that a table's name begins like one ("[:" does not)
// before it says that it does not. Without NDEBUG a file would abort the program; with it, and with clang, it
// would be taken for what cannot happen.

#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(...) static_assert(true)
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")
