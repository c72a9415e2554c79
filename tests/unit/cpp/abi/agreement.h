// Whether declarations of the engine and those of NVIDIA's headers pass the same values in the same
// places. All of it is decided while the tests are compiled.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "core/shared_library.h"

namespace hvd::test {

// NVIDIA's type for a struct or an enum of the engine, or for what a handle points to.
template <typename Ours>
struct Counterpart;
template <typename Ours, typename Theirs = typename Counterpart<Ours>::Type>
inline constexpr bool has_same_layout =
    sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);

// What a pointer points to must agree as well; void only agrees with void. An integer agrees with
// each enum of its size: which sign that has is the compiler's choice.
template <typename Ours, typename Theirs>
consteval bool agree() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    return std::is_const_v<OurTarget> == std::is_const_v<TheirTarget> &&
           agree<std::remove_cv_t<OurTarget>, std::remove_cv_t<TheirTarget>>();
  } else if constexpr (std::is_class_v<Ours> || std::is_enum_v<Ours>) {
    return std::is_same_v<typename Counterpart<Ours>::Type, Theirs>;
  } else if constexpr (std::is_integral_v<Ours> && std::is_enum_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  } else {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct Agreement : std::false_type {};  // another number of parameters

template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct Agreement<LibraryFunction<OurResult, Ours...>, TheirResult(Theirs...)>
    : std::bool_constant<agree<OurResult, TheirResult>() && (agree<Ours, Theirs>() && ...)> {};

// A table of functions has a reference to the library and `count` functions, and nothing else.
template <typename Table>
consteval bool has_functions(std::size_t count) {
  return sizeof(Table) == sizeof(const SharedLibrary*) + count * sizeof(LibraryFunction<void>);
}

}  // namespace hvd::test

#define HVD_COUNTERPART(Ours, Theirs) \
  template <>                         \
  struct Counterpart<Ours> {          \
    using Type = Theirs;              \
  };

// For a list of pairs (member of `Table`, function of the library). An enum counts them, and has no
// two of one name, so no member is missing.
#define HVD_COUNTED(member, function) member,
#define HVD_AGREES(member, function)                                                        \
  static_assert(::hvd::test::Agreement<decltype(Table::member), decltype(function)>::value, \
                #function);
#define HVD_HAS_NAME(member, function) CHECK(std::string_view(table.member.name) == #function);
