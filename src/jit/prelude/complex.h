namespace std {
template <class T> class alignas(2 * sizeof(T)) complex {
    T re, im;
public:
    typedef T value_type;
    complex() = default;
    TCUDA_INLINE constexpr complex(T re, T im = T()) : re(re), im(im) {}
    template <class U> TCUDA_INLINE constexpr complex(const complex<U> &z)
        : re(static_cast<T>(z.real())), im(static_cast<T>(z.imag())) {}
    TCUDA_INLINE constexpr T real() const { return re; }
    TCUDA_INLINE constexpr T imag() const { return im; }
    TCUDA_INLINE void real(T x) { re = x; }
    TCUDA_INLINE void imag(T x) { im = x; }
    TCUDA_INLINE complex &operator+=(const complex &z) { return *this = *this + z; }
    TCUDA_INLINE complex &operator-=(const complex &z) { return *this = *this - z; }
    TCUDA_INLINE complex &operator*=(const complex &z) { return *this = *this * z; }
    TCUDA_INLINE complex &operator/=(const complex &z) { return *this = *this / z; }
    friend TCUDA_INLINE complex operator+(const complex &z) { return z; }
    friend TCUDA_INLINE complex operator-(const complex &z) { return complex(-z.re, -z.im); }
    friend TCUDA_INLINE complex operator+(const complex &z, const complex &w) {
        return complex(z.re + w.re, z.im + w.im);
    }
    friend TCUDA_INLINE complex operator-(const complex &z, const complex &w) {
        return complex(z.re - w.re, z.im - w.im);
    }
    /* The product and quotient of C's Annex G: infinities stay what they are. */
    friend TCUDA_INLINE complex operator*(const complex &z, const complex &w) {
        T a = z.re, b = z.im, c = w.re, d = w.im;
        const T ac = a * c, bd = b * d, ad = a * d, bc = b * c;
        T x = ac - bd, y = ad + bc;
        if (isnan(x) && isnan(y)) {
            bool again = false;
            if (isinf(a) || isinf(b)) {
                a = copysign(T(isinf(a)), a), b = copysign(T(isinf(b)), b);
                if (isnan(c)) c = copysign(T(0), c);
                if (isnan(d)) d = copysign(T(0), d);
                again = true;
            }
            if (isinf(c) || isinf(d)) {
                c = copysign(T(isinf(c)), c), d = copysign(T(isinf(d)), d);
                if (isnan(a)) a = copysign(T(0), a);
                if (isnan(b)) b = copysign(T(0), b);
                again = true;
            }
            if (!again && (isinf(ac) || isinf(bd) || isinf(ad) || isinf(bc))) {
                if (isnan(a)) a = copysign(T(0), a);
                if (isnan(b)) b = copysign(T(0), b);
                if (isnan(c)) c = copysign(T(0), c);
                if (isnan(d)) d = copysign(T(0), d);
                again = true;
            }
            if (again) x = T(INFINITY) * (a * c - b * d), y = T(INFINITY) * (a * d + b * c);
        }
        return complex(x, y);
    }
    friend TCUDA_INLINE complex operator/(const complex &z, const complex &w) {
        T a = z.re, b = z.im, c = w.re, d = w.im;
        int power = 0;
        const T order = logb(fmax(fabs(c), fabs(d)));
        if (isfinite(order)) {
            power = static_cast<int>(order);
            c = scalbn(c, -power), d = scalbn(d, -power);
        }
        const T whole = c * c + d * d;
        T x = scalbn((a * c + b * d) / whole, -power), y = scalbn((b * c - a * d) / whole, -power);
        if (isnan(x) && isnan(y)) {
            if (whole == T(0) && (!isnan(a) || !isnan(b))) {
                x = copysign(T(INFINITY), c) * a, y = copysign(T(INFINITY), c) * b;
            } else if ((isinf(a) || isinf(b)) && isfinite(c) && isfinite(d)) {
                a = copysign(T(isinf(a)), a), b = copysign(T(isinf(b)), b);
                x = T(INFINITY) * (a * c + b * d), y = T(INFINITY) * (b * c - a * d);
            } else if (isinf(order) && order > T(0) && isfinite(a) && isfinite(b)) {
                c = copysign(T(isinf(c)), c), d = copysign(T(isinf(d)), d);
                x = T(0) * (a * c + b * d), y = T(0) * (b * c - a * d);
            }
        }
        return complex(x, y);
    }
    friend TCUDA_INLINE bool operator==(const complex &z, const complex &w) {
        return z.re == w.re && z.im == w.im;
    }
    friend TCUDA_INLINE bool operator!=(const complex &z, const complex &w) { return !(z == w); }
};
template <class T> TCUDA_INLINE T real(const complex<T> &z) { return z.real(); }
template <class T> TCUDA_INLINE T imag(const complex<T> &z) { return z.imag(); }
template <class T> TCUDA_INLINE T abs(const complex<T> &z) { return hypot(z.real(), z.imag()); }
template <class T> TCUDA_INLINE T arg(const complex<T> &z) { return atan2(z.imag(), z.real()); }
template <class T> TCUDA_INLINE complex<T> conj(const complex<T> &z) {
    return complex<T>(z.real(), -z.imag());
}
template <class T> TCUDA_INLINE T norm(const complex<T> &z) {
    if (isinf(z.real()) || isinf(z.imag())) return T(INFINITY);
    return z.real() * z.real() + z.imag() * z.imag();
}
template <class T> TCUDA_INLINE complex<T> polar(const T &rho, const T &theta = T()) {
    return complex<T>(rho * cos(theta), rho * sin(theta));
}
template <class T> TCUDA_INLINE complex<T> log(const complex<T> &z) {
    return complex<T>(log(abs(z)), arg(z));
}
template <class T> TCUDA_INLINE complex<T> exp(const complex<T> &z) {
    T x = z.real(), y = z.imag();
    if (y == T(0)) return complex<T>(exp(x), copysign(T(0), y));
    if (isinf(x)) {
        if (x < T(0)) {
            if (!isfinite(y)) y = T(1);
        } else if (!isfinite(y)) {
            return complex<T>(x, isinf(y) ? T(NAN) : y);
        }
    }
    const T e = exp(x);
    return complex<T>(e * cos(y), e * sin(y));
}
template <class T> TCUDA_INLINE complex<T> sqrt(const complex<T> &z) {
    if (isinf(z.imag())) return complex<T>(T(INFINITY), z.imag());
    if (isinf(z.real())) {
        if (z.real() > T(0))
            return complex<T>(z.real(), isnan(z.imag()) ? z.imag() : copysign(T(0), z.imag()));
        return complex<T>(isnan(z.imag()) ? z.imag() : T(0), copysign(z.real(), z.imag()));
    }
    return polar(sqrt(abs(z)), arg(z) / T(2));
}
template <class T> TCUDA_INLINE complex<T> pow(const complex<T> &z, const complex<T> &w) {
    return exp(w * log(z));
}
template <class T> TCUDA_INLINE complex<T> sinh(const complex<T> &z) {
    return complex<T>(sinh(z.real()) * cos(z.imag()), cosh(z.real()) * sin(z.imag()));
}
template <class T> TCUDA_INLINE complex<T> cosh(const complex<T> &z) {
    return complex<T>(cosh(z.real()) * cos(z.imag()), sinh(z.real()) * sin(z.imag()));
}
template <class T> TCUDA_INLINE complex<T> tanh(const complex<T> &z) {
    const T x = T(2) * z.real(), y = T(2) * z.imag();
    const T whole = cosh(x) + cos(y), up = sinh(x);
    if (isinf(up) && isinf(whole)) {
        const T side = x > T(0) ? T(1) : T(-1);
        return complex<T>(side, y > T(0) ? T(0) : T(-0.0));
    }
    return complex<T>(up / whole, sin(y) / whole);
}
template <class T> TCUDA_INLINE complex<T> sin(const complex<T> &z) {
    const complex<T> w = sinh(complex<T>(-z.imag(), z.real()));
    return complex<T>(w.imag(), -w.real());
}
template <class T> TCUDA_INLINE complex<T> cos(const complex<T> &z) {
    return cosh(complex<T>(-z.imag(), z.real()));
}
template <class T> TCUDA_INLINE complex<T> tan(const complex<T> &z) {
    const complex<T> w = tanh(complex<T>(-z.imag(), z.real()));
    return complex<T>(w.imag(), -w.real());
}
template <class T> TCUDA_INLINE complex<T> log10(const complex<T> &z) {
    const T scale = log(T(10));
    return complex<T>(log(abs(z)) / scale, arg(z) / scale);
}
template <class T> TCUDA_INLINE complex<T> pow(const complex<T> &z, const T &w) {
    return pow(z, complex<T>(w));
}
template <class T> TCUDA_INLINE complex<T> pow(const T &z, const complex<T> &w) {
    return pow(complex<T>(z), w);
}
template <class T, class U, class = enable_if_t<is_arithmetic<U>::value && !is_same<T, U>::value>>
TCUDA_INLINE auto pow(const complex<T> &z, const U &w) {
    typedef complex<tcuda::real_of<T, U>> wide;
    return pow(wide(z), wide(static_cast<typename wide::value_type>(w)));
}
template <class T, class U, class = enable_if_t<is_arithmetic<U>::value && !is_same<T, U>::value>>
TCUDA_INLINE auto pow(const U &z, const complex<T> &w) {
    typedef complex<tcuda::real_of<T, U>> wide;
    return pow(wide(static_cast<typename wide::value_type>(z)), wide(w));
}
template <class T> TCUDA_INLINE complex<T> proj(const complex<T> &z) {
    const bool is_far = isinf(z.real()) || isinf(z.imag());
    return is_far ? complex<T>(T(INFINITY), copysign(T(0), z.imag())) : z;
}
/* The inverse functions, with the values of C's Annex G at infinities and for NaN. */
template <class T> TCUDA_INLINE complex<T> root_of_square(const complex<T> &z, T more) {
    const T x = z.real(), y = z.imag();
    return sqrt(complex<T>((x - y) * (x + y) + more, T(2) * x * y));
}
template <class T> TCUDA_INLINE complex<T> asinh(const complex<T> &z) {
    const T x = z.real(), y = z.imag(), right = T(1.5707963267948966);
    if (isinf(x)) {
        if (isnan(y)) return z;
        return complex<T>(x, copysign(isinf(y) ? right / T(2) : T(0), y));
    }
    if (isnan(x)) return isinf(y) ? complex<T>(y, x) : y == T(0) ? z : complex<T>(x, x);
    if (isinf(y)) return complex<T>(copysign(y, x), copysign(right, y));
    const complex<T> w = log(z + root_of_square(z, T(1)));
    return complex<T>(copysign(w.real(), x), copysign(w.imag(), y));
}
template <class T> TCUDA_INLINE complex<T> acosh(const complex<T> &z) {
    const T x = z.real(), y = z.imag(), right = T(1.5707963267948966);
    if (isinf(x)) {
        if (isnan(y)) return complex<T>(fabs(x), y);
        const T angle = isinf(y) ? (x > T(0) ? right / T(2) : right * T(1.5))
                                 : (x > T(0) ? T(0) : right * T(2));
        return complex<T>(fabs(x), copysign(angle, y));
    }
    if (isnan(x)) return isinf(y) ? complex<T>(fabs(y), x) : complex<T>(x, x);
    if (isinf(y) || (x == T(0) && isnan(y))) return complex<T>(fabs(y), copysign(right, y));
    const complex<T> w = log(z + root_of_square(z, T(-1)));
    return complex<T>(copysign(w.real(), T(0)), copysign(w.imag(), y));
}
template <class T> TCUDA_INLINE complex<T> atanh(const complex<T> &z) {
    const T x = z.real(), y = z.imag(), right = T(1.5707963267948966);
    if (isinf(y)) return complex<T>(copysign(T(0), x), copysign(right, y));
    if (isnan(y))
        return isinf(x) || x == T(0) ? complex<T>(copysign(T(0), x), y) : complex<T>(y, y);
    if (isnan(x)) return complex<T>(x, x);
    if (isinf(x)) return complex<T>(copysign(T(0), x), copysign(right, y));
    if (fabs(x) == T(1) && y == T(0))
        return complex<T>(copysign(T(INFINITY), x), copysign(T(0), y));
    const complex<T> w = log((complex<T>(1) + z) / (complex<T>(1) - z));
    return complex<T>(copysign(w.real() / T(2), x), copysign(w.imag() / T(2), y));
}
template <class T> TCUDA_INLINE complex<T> acos(const complex<T> &z) {
    const T x = z.real(), y = z.imag(), right = T(1.5707963267948966);
    const bool is_below = signbit(y);
    if (isinf(x)) {
        if (isnan(y)) return complex<T>(y, x);
        if (isinf(y)) return complex<T>(x < T(0) ? right * T(1.5) : right / T(2), -y);
        return complex<T>(x < T(0) ? right * T(2) : T(0), is_below ? T(INFINITY) : -T(INFINITY));
    }
    if (isnan(x)) return complex<T>(x, isinf(y) ? -y : x);
    if (isinf(y) || (x == T(0) && (y == T(0) || isnan(y)))) return complex<T>(right, -y);
    const complex<T> w = log(z + root_of_square(z, T(-1)));
    return complex<T>(fabs(w.imag()), is_below ? fabs(w.real()) : -fabs(w.real()));
}
template <class T> TCUDA_INLINE complex<T> asin(const complex<T> &z) {
    const complex<T> w = asinh(complex<T>(-z.imag(), z.real()));
    return complex<T>(w.imag(), -w.real());
}
template <class T> TCUDA_INLINE complex<T> atan(const complex<T> &z) {
    const complex<T> w = atanh(complex<T>(-z.imag(), z.real()));
    return complex<T>(w.imag(), -w.real());
}
/* A real number is a complex one. */
template <class T> TCUDA_INLINE tcuda::real_of<T> real(T x) { return x; }
template <class T> TCUDA_INLINE tcuda::real_of<T> imag(T) { return 0; }
template <class T> TCUDA_INLINE tcuda::real_of<T> arg(T x) {
    return atan2(tcuda::real_of<T>(0), tcuda::real_of<T>(x));
}
template <class T> TCUDA_INLINE tcuda::real_of<T> norm(T x) {
    return tcuda::real_of<T>(x) * tcuda::real_of<T>(x);
}
template <class T> TCUDA_INLINE complex<tcuda::real_of<T>> conj(T x) {
    return complex<tcuda::real_of<T>>(x);
}
template <class T> TCUDA_INLINE complex<tcuda::real_of<T>> proj(T x) {
    return proj(complex<tcuda::real_of<T>>(x));
}
}
namespace tcuda {
template <class T, class From> struct cast<std::complex<T>, From> {
    static TCUDA_INLINE std::complex<T> of(From x) { return std::complex<T>(to<T>(x)); }
};
template <class T, class U> struct cast<std::complex<T>, std::complex<U>> {
    static TCUDA_INLINE std::complex<T> of(std::complex<U> z) {
        return std::complex<T>(to<T>(z.real()), to<T>(z.imag()));
    }
};
template <class T> struct cast<std::complex<T>, std::complex<T>> {
    static TCUDA_INLINE std::complex<T> of(std::complex<T> z) { return z; }
};
}
