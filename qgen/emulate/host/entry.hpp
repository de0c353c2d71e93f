// How a kernel becomes callable: its parameter types are taken from its own function type.
#pragma once

#include <type_traits>
#include <utility>

#include "machine.hpp"

namespace qgen_host {

enum class Kind : int32_t { pointer, signed_integer, unsigned_integer, floating };

struct Parameter {
    Kind kind;
    int32_t bytes;
};

struct Entry {
    const char* name;
    void (*call)(void* const* arguments);
    const Parameter* parameters;
    int32_t count;
};

template <class T>
constexpr Parameter describe() {
    static_assert(std::is_pointer_v<T> || std::is_arithmetic_v<T>, "kernel parameters are pointers or numbers");
    return {std::is_pointer_v<T>          ? Kind::pointer
            : std::is_floating_point_v<T> ? Kind::floating
            : std::is_signed_v<T>         ? Kind::signed_integer
                                          : Kind::unsigned_integer,
            sizeof(T)};
}

template <auto kernel>
struct Launcher;

template <class... P, void (*kernel)(P...)>
struct Launcher<kernel> {
    static constexpr int count = sizeof...(P);
    static constexpr Parameter parameters[count + 1] = {describe<P>()..., {}};

    template <size_t... i>
    static void call_with(void* const* arguments, std::index_sequence<i...>) {
        kernel(*static_cast<P*>(arguments[i])...);
    }
    static void call(void* const* arguments) { call_with(arguments, std::index_sequence_for<P...>{}); }
};

}  // namespace qgen_host

// The generated program defines these, one row a kernel.
extern const qgen_host::Entry qgen_entries[];
extern const int qgen_entry_count;

#define QGEN_EMULATE(name) \
    {#name, qgen_host::Launcher<&name>::call, qgen_host::Launcher<&name>::parameters, qgen_host::Launcher<&name>::count}
