"""Makes C++ of the driver's calls in src/driver/api.rs, which compiles if they are what cuda.h declares."""

import re
import sys

# What Rust names, and what is as large and passed alike: handles are pointers, results and options are 32 bits.
KINDS = {
    "c_int": "int",
    "c_uint": "unsigned",
    "c_ulonglong": "unsigned long long",
    "c_uchar": "unsigned char",
    "usize": "size_t",
    "*mut c_int": "int*",
    "*mut usize": "size_t*",
    "*mut c_char": "char*",
    "*const c_char": "const char*",
    "*mut *const c_char": "const char**",
    "*mut c_ulonglong": "unsigned long long*",
    "*mut c_void": "void*",
    "*const c_void": "const void*",
    "*mut *mut c_void": "void**",
}

text = open(sys.argv[1], encoding="utf-8").read()
table = re.search(r"^api! \{(.*?)^\}", text, re.S | re.M).group(1)
calls = re.findall(r"(cu\w+)\(([^)]*)\);", table)
assert len(calls) > 20, calls
print(
    """#include <cuda.h>
#include <type_traits>
// Whether our type may stand for the header's: a pointer for one to the like of it, void for a handle, a number for one of its
// size and kind, an enumeration's included.
template <class Ours, class Theirs> constexpr bool alike() {
  if constexpr (std::is_same_v<Ours, Theirs>) return true;
  else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using A = std::remove_pointer_t<Ours>;
    using B = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_void_v<A>) return std::is_class_v<B> || std::is_void_v<B>;
    else return alike<A, B>();
  }
  else if constexpr (std::is_enum_v<Theirs>) return std::is_integral_v<Ours> && sizeof(Ours) == sizeof(Theirs);
  else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>)
    return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  else return false;
}
template <class... Ours, class... Theirs> constexpr bool same(CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs)) return false;
  else return (alike<Ours, Theirs>() && ...);
}"""
)
for name, kinds in calls:
    kinds = [KINDS[kind.strip()] for kind in kinds.split(",") if kind.strip()]
    print(f'static_assert(same<{", ".join(kinds)}>(decltype(&{name})(nullptr)), "{name} in cuda.h");')
