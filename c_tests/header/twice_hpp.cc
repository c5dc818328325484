#include <tcuda.hpp>
#include <tcuda.hpp>
