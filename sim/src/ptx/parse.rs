//! Reads the tree of a module from its words.

use super::token::{Token, Tokens, split};
use super::tree::{
    Body, Function, Instruction, Linkage, Module, Operand, Space, Statement, Variable,
};
use super::types::Type;
use super::{LoadError, LoadErrorKind, Result};
use std::collections::HashMap;

/// The newest version of PTX that is read.
pub const NEWEST: (u32, u32) = (9, 1);

/// Reads a module.
pub fn module(text: &str) -> Result<Module<'_>> {
    let tokens = split(text).map_err(|error| match text.contains(".version") {
        true => error,
        false => LoadError { kind: LoadErrorKind::NotPtx, ..error },
    })?;
    Parser::new(tokens).module()
}

/// Scopes, parentheses and signs within each other.
const DEEPEST: u32 = 200;

struct Parser<'a> {
    tokens: Tokens<'a>,
    at: usize,
    /// How many scopes or parentheses are open.
    depth: u32,
}

/// What a name of a function's body stands for.
#[derive(Clone, Copy)]
enum Name {
    Register(u32),
    /// A register of a vector: the first of its elements, and how many.
    Vector(u32, u32),
    /// `%r<10>`: registers with a number after the name, from this one on, how many, and how many
    /// elements each has.
    Registers(u32, u32, u32),
    Variable(u32),
    Label(u32),
}

/// The names of a body, innermost scope last.
#[derive(Default)]
struct Scopes<'a>(Vec<HashMap<&'a str, Name>>);

impl<'a> Scopes<'a> {
    fn declare(&mut self, name: &'a str, meaning: Name) {
        if let Some(innermost) = self.0.last_mut() {
            innermost.insert(name, meaning);
        }
    }

    fn find(&self, name: &str) -> Option<Name> {
        let (prefix, number) = split_number(name);
        self.0.iter().rev().find_map(|scope| {
            if let Some(found) = scope.get(name)
                && !matches!(found, Name::Registers(..))
            {
                return Some(*found);
            }
            match scope.get(prefix)? {
                Name::Registers(first, count, 1) if number? < *count => {
                    Some(Name::Register(first + number?))
                }
                Name::Registers(first, count, lanes) if number? < *count => {
                    Some(Name::Vector(first + number? * lanes, *lanes))
                }
                _ => None,
            }
        })
    }
}

/// `%r12` is `%r` and 12.
fn split_number(name: &str) -> (&str, Option<u32>) {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (prefix, name[prefix.len()..].parse().ok())
}

impl<'a> Parser<'a> {
    fn new(tokens: Tokens<'a>) -> Parser<'a> {
        Parser { tokens, at: 0, depth: 0 }
    }

    /// Reads something that can contain itself.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEEPEST {
            return self.error("too many scopes or parentheses are open");
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.list.get(self.at).map(|(token, _)| *token)
    }

    fn peek_at(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.list.get(self.at + ahead).map(|(token, _)| *token)
    }

    fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.list.len().saturating_sub(1));
        self.tokens.list.get(at).map_or(0, |(_, line)| *line)
    }

    fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(LoadError::invalid(self.line(), message))
    }

    fn takes(&mut self, mark: u8) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(Token::Word(word));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: u8) -> Result<()> {
        if self.takes(mark) {
            return Ok(());
        }
        let found = self.describe();
        self.error(format!("'{}' is expected before {found}", char::from(mark)))
    }

    fn describe(&self) -> String {
        match self.peek() {
            None => "the end of the text".into(),
            Some(Token::Word(text) | Token::Number(text)) => format!("\"{text}\""),
            Some(Token::Text(text)) => format!("the text \"{text}\""),
            Some(Token::Mark(mark)) => format!("'{}'", char::from(mark)),
        }
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => {
                let found = self.describe();
                self.error(format!("a name is expected before {found}"))
            }
        }
    }

    /// A number without a fraction.
    fn count(&mut self) -> Result<u32> {
        let Some(Token::Number(text)) = self.peek() else {
            let found = self.describe();
            return self.error(format!("a number is expected before {found}"));
        };
        let Some(Operand::Integer(value)) = number(text) else {
            return self.error(format!("{text} is not an integer"));
        };
        self.at += 1;
        u32::try_from(value).or_else(|_| self.error(format!("{text} is out of range")))
    }

    /// Skips the words up to the end of their line.
    fn skip_line(&mut self) {
        let line = self.line();
        while self.at < self.tokens.list.len() && self.line() == line {
            self.at += 1;
        }
    }

    fn module(&mut self) -> Result<Module<'a>> {
        let mut module = Module::default();
        let not_ptx = |parser: &Self, message: &str| LoadError {
            kind: LoadErrorKind::NotPtx,
            line: parser.line(),
            message: message.into(),
        };
        if !self.takes_word(".version") {
            return Err(not_ptx(self, "the text does not begin with .version"));
        }
        module.version = self.version()?;
        if !self.takes_word(".target") {
            return self.error(".target does not follow .version");
        }
        let target = self.word()?;
        let digits = target.strip_prefix("sm_").map(|text| text.trim_end_matches(['a', 'f']));
        module.target = match digits.and_then(|digits| digits.parse().ok()) {
            Some(target) => target,
            None => return self.error(format!("{target} is no target of PTX")),
        };
        while self.takes(b',') {
            self.word()?;
        }
        while self.peek().is_some() {
            self.item(&mut module)?;
        }
        Ok(module)
    }

    fn version(&mut self) -> Result<(u32, u32)> {
        let line = self.line();
        let Some(Token::Number(text)) = self.next() else {
            return Err(LoadError::invalid(line, "a version is expected after .version"));
        };
        let numbers = text.split_once('.');
        let numbers =
            numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let Some(version) = numbers else {
            return Err(LoadError::invalid(line, format!("{text} is no version of PTX")));
        };
        if version > NEWEST {
            let message = format!(
                "PTX {text} is newer than this driver, which reads versions up to {}.{}",
                NEWEST.0, NEWEST.1
            );
            return Err(LoadError { kind: LoadErrorKind::Version, line, message });
        }
        Ok(version)
    }

    /// A directive outside of functions.
    #[inline(never)]
    fn item(&mut self, module: &mut Module<'a>) -> Result<()> {
        let mut linkage = Linkage::Internal;
        loop {
            let line = self.line();
            let word = match self.peek() {
                Some(Token::Word(word)) if word.starts_with('.') => word,
                // Lines of an old form of debugging data: "@@DWARF ...".
                Some(Token::Mark(b'@')) => {
                    self.skip_line();
                    return Ok(());
                }
                Some(Token::Mark(b';')) => {
                    self.at += 1;
                    return Ok(());
                }
                _ => {
                    let found = self.describe();
                    return self.error(format!("a directive is expected before {found}"));
                }
            };
            self.at += 1;
            match word {
                ".extern" => linkage = Linkage::Extern,
                ".visible" => linkage = Linkage::Visible,
                ".weak" | ".common" => linkage = Linkage::Weak,
                ".address_size" => {
                    if self.count()? != 64 {
                        return self.error("only 64-bit addresses are supported");
                    }
                    return Ok(());
                }
                ".file" => {
                    let number = self.count()?;
                    if let Some(Token::Text(name)) = self.next() {
                        module.files.push((number, name));
                    }
                    while self.takes(b',') {
                        self.count()?;
                    }
                    return Ok(());
                }
                ".section" => return self.section(),
                ".pragma" => {
                    while !matches!(self.next(), None | Some(Token::Mark(b';'))) {}
                    return Ok(());
                }
                ".alias" => {
                    let alias = self.word()?;
                    self.expect(b',')?;
                    module.aliases.push((alias, self.word()?));
                    return self.expect(b';');
                }
                ".entry" | ".func" => {
                    let function = self.function(word == ".entry", linkage, line)?;
                    module.functions.push(function);
                    return Ok(());
                }
                _ => {
                    self.at -= 1;
                    return self.variables(linkage, &mut module.variables);
                }
            }
        }
    }

    /// A section of debugging data is skipped.
    fn section(&mut self) -> Result<()> {
        self.word()?;
        self.expect(b'{')?;
        loop {
            match self.next() {
                Some(Token::Mark(b'}')) => return Ok(()),
                Some(_) => {}
                None => return self.error("a section has no end"),
            }
        }
    }

    /// Declares variables: `.global .align 4 .b8 name[16] = {1, 2}, other;`.
    fn variables(&mut self, linkage: Linkage, list: &mut Vec<Variable<'a>>) -> Result<()> {
        let mut variable = self.variable_type(linkage)?;
        loop {
            self.variable_name(&mut variable)?;
            if self.takes(b'=') {
                variable.values = self.initial_values()?;
                if variable.count == 0 {
                    variable.count = variable.values.len();
                }
            }
            list.push(variable.clone());
            variable.values.clear();
            if !self.takes(b',') {
                return self.expect(b';');
            }
        }
    }

    /// The part of a declaration before the name.
    fn variable_type(&mut self, linkage: Linkage) -> Result<Variable<'a>> {
        let mut variable = Variable {
            name: "",
            space: Space::Param,
            of: Type::B8,
            count: 1,
            align: 0,
            linkage,
            values: Vec::new(),
            register: None,
            is_managed: false,
        };
        loop {
            let word = self.word()?;
            match word {
                ".global" => variable.space = Space::Global,
                ".shared" | ".shared::cta" => variable.space = Space::Shared,
                ".local" => variable.space = Space::Local,
                ".const" => variable.space = Space::Const,
                ".param" => variable.space = Space::Param,
                // The number follows where the body is read.
                ".reg" => variable.register = Some(u32::MAX),
                ".align" => variable.align = self.count()? as usize,
                ".v2" | ".v4" => variable.count = if word == ".v2" { 2 } else { 4 },
                ".ptr" | ".volatile" | ".unified" => {}
                ".managed" => variable.is_managed = true,
                ".attribute" => variable.is_managed |= self.skip_brackets(".managed")?,
                ".texref" | ".samplerref" | ".surfref" => {
                    let message = format!("{word}: textures and surfaces are not executed");
                    return Err(LoadError::unsupported(self.line(), message));
                }
                _ => match word.strip_prefix('.').and_then(Type::named) {
                    Some(of) => {
                        variable.of = of;
                        break;
                    }
                    None => return self.error(format!("unknown directive {word}")),
                },
            }
        }
        // ".ptr .global .align 4" may follow the type of a parameter.
        while let Some(Token::Word(word)) = self.peek()
            && word.starts_with('.')
        {
            self.at += 1;
            match word {
                ".align" => {
                    self.count()?;
                }
                ".ptr" | ".global" | ".shared" | ".local" | ".const" => {}
                _ => return self.error(format!("unknown directive {word}")),
            }
        }
        Ok(variable)
    }

    /// The name and the dimensions.
    fn variable_name(&mut self, variable: &mut Variable<'a>) -> Result<()> {
        let of = variable.of.bytes();
        let lanes = variable.count;
        variable.name = self.word()?;
        let mut count = lanes;
        let mut is_array = false;
        while self.takes(b'[') {
            is_array = true;
            if self.takes(b']') {
                count = 0;
                continue;
            }
            let size = self.count()? as usize;
            count = match count.checked_mul(size).filter(|count| *count < 1 << 40) {
                Some(count) => count,
                None => return self.error(format!("{} is too large", variable.name)),
            };
            self.expect(b']')?;
        }
        variable.count = count;
        let natural = if is_array { of } else { of * lanes };
        variable.align = variable.align.max(natural.max(1).next_power_of_two());
        Ok(())
    }

    fn initial_values(&mut self) -> Result<Vec<Operand<'a>>> {
        let mut values = Vec::new();
        if !self.takes(b'{') {
            values.push(self.initial_value()?);
            return Ok(values);
        }
        let mut depth = 1usize;
        while depth > 0 {
            if self.takes(b'{') {
                depth += 1;
            } else if self.takes(b'}') {
                depth -= 1;
            } else if !self.takes(b',') {
                values.push(self.initial_value()?);
            }
        }
        Ok(values)
    }

    fn initial_value(&mut self) -> Result<Operand<'a>> {
        if let Some(Token::Word("generic")) = self.peek() {
            self.at += 1;
            self.expect(b'(')?;
            let name = self.word()?;
            self.expect(b')')?;
            return Ok(Operand::GenericSymbol(name, self.offset()?));
        }
        self.operand(&Scopes::default())
    }

    /// `+4`, `+-4`, `-4`, `+4*2+8` or nothing.
    fn offset(&mut self) -> Result<i64> {
        let mut sum = 0i64;
        loop {
            let is_minus = match self.peek() {
                Some(Token::Mark(b'+')) => false,
                Some(Token::Mark(b'-')) => true,
                _ => return Ok(sum),
            };
            self.at += 1;
            let scopes = Scopes::default();
            let first = self.simple_operand(&scopes)?;
            match self.expression(first, MULTIPLICATION, &scopes)? {
                Operand::Integer(value) if is_minus => sum = sum.wrapping_sub(value as i64),
                Operand::Integer(value) => sum = sum.wrapping_add(value as i64),
                _ => return self.error("a number of bytes is expected"),
            }
        }
    }

    /// Skips brackets and what they contain; true if that includes a word.
    fn skip_brackets(&mut self, word: &str) -> Result<bool> {
        self.expect(b'(')?;
        let (mut depth, mut is_found) = (1usize, false);
        while depth > 0 {
            match self.next() {
                Some(Token::Word(found)) => is_found |= found == word,
                Some(Token::Mark(b'(')) => depth += 1,
                Some(Token::Mark(b')')) => depth -= 1,
                Some(_) => {}
                None => return self.error("')' is expected before the end of the text"),
            }
        }
        Ok(is_found)
    }

    fn parameters(&mut self) -> Result<Vec<Variable<'a>>> {
        let mut list = Vec::new();
        if !self.takes(b'(') {
            return Ok(list);
        }
        while !self.takes(b')') {
            let mut variable = self.variable_type(Linkage::Internal)?;
            self.variable_name(&mut variable)?;
            list.push(variable);
            self.takes(b',');
        }
        Ok(list)
    }

    fn function(&mut self, is_kernel: bool, linkage: Linkage, line: u32) -> Result<Function<'a>> {
        let mut function = Function { is_kernel, linkage, line, ..Function::default() };
        while self.takes_word(".attribute") {
            self.skip_brackets("")?;
        }
        if self.peek() == Some(Token::Mark(b'(')) {
            function.results = self.parameters()?;
        }
        function.name = self.word()?;
        function.parameters = self.parameters()?;
        loop {
            match self.peek() {
                Some(Token::Mark(b';')) => {
                    self.at += 1;
                    return Ok(function);
                }
                Some(Token::Mark(b'{')) => break,
                Some(Token::Word(".pragma")) => {
                    while !matches!(self.next(), None | Some(Token::Mark(b';'))) {}
                }
                Some(Token::Word(word)) if word.starts_with('.') => {
                    self.at += 1;
                    let mut numbers = Vec::new();
                    while let Some(Token::Number(_)) = self.peek() {
                        numbers.push(self.count()?);
                        self.takes(b',');
                    }
                    function.directives.push((word, numbers));
                }
                _ => {
                    let found = self.describe();
                    return self.error(format!("a body is expected before {found}"));
                }
            }
        }
        self.at += 1;
        let (mut body, mut scopes) = (Body::default(), Scopes(vec![HashMap::new()]));
        for variable in function.results.iter_mut().chain(&mut function.parameters) {
            if let Some(number) = &mut variable.register {
                *number = body.registers.len() as u32;
                body.registers.push(variable.of);
                scopes.declare(variable.name, Name::Register(*number));
            }
        }
        self.scope(&mut body, &mut scopes)?;
        function.body = Some(body);
        Ok(function)
    }

    /// Declares the labels of the scope that begins here, so that a branch can lead forwards.
    fn declare_labels(&self, body: &mut Body<'a>, scopes: &mut Scopes<'a>) {
        let (mut at, mut depth) = (self.at, 0usize);
        let list = &self.tokens.list;
        while let Some((token, _)) = list.get(at) {
            match token {
                Token::Mark(b'{') => depth += 1,
                Token::Mark(b'}') if depth == 0 => return,
                Token::Mark(b'}') => depth -= 1,
                Token::Mark(b':') if depth == 0 => {
                    if let Some((Token::Word(name), _)) =
                        at.checked_sub(1).and_then(|at| list.get(at))
                    {
                        scopes.declare(name, Name::Label(body.labels));
                        body.labels += 1;
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// The statements up to the closing brace.
    fn scope(&mut self, body: &mut Body<'a>, scopes: &mut Scopes<'a>) -> Result<()> {
        self.nested(|this| this.statements(body, scopes))
    }

    fn statements(&mut self, body: &mut Body<'a>, scopes: &mut Scopes<'a>) -> Result<()> {
        scopes.0.push(HashMap::new());
        self.declare_labels(body, scopes);
        let mut label = None;
        loop {
            match self.peek() {
                Some(Token::Mark(b'}')) => {
                    self.at += 1;
                    scopes.0.pop();
                    return Ok(());
                }
                Some(Token::Mark(b'{')) => {
                    self.at += 1;
                    self.scope(body, scopes)?;
                }
                Some(Token::Mark(b';')) => self.at += 1,
                Some(Token::Word(name)) if self.peek_at(1) == Some(Token::Mark(b':')) => {
                    self.at += 2;
                    if let Some(Name::Label(number)) = scopes.find(name) {
                        body.statements.push(Statement::Label(number));
                        label = Some(number);
                    }
                    continue;
                }
                Some(Token::Word(word)) if word.starts_with('.') => {
                    self.directive(word, label, body, scopes)?;
                }
                Some(Token::Word(_) | Token::Mark(b'@')) => {
                    let instruction = self.instruction(scopes)?;
                    body.statements.push(Statement::Instruction(instruction));
                }
                None => return self.error("'}' is expected before the end of the text"),
                _ => {
                    let found = self.describe();
                    return self.error(format!("a statement is expected before {found}"));
                }
            }
            label = None;
        }
    }

    fn directive(
        &mut self,
        word: &'a str,
        label: Option<u32>,
        body: &mut Body<'a>,
        scopes: &mut Scopes<'a>,
    ) -> Result<()> {
        match word {
            ".reg" => self.registers(body, scopes),
            ".loc" => {
                self.at += 1;
                let (file, line) = (self.count()?, self.count()?);
                // The column, and where it was inlined.
                self.at -= 1;
                self.skip_line();
                body.statements.push(Statement::Location(file, line));
                Ok(())
            }
            ".file" => {
                self.skip_line();
                Ok(())
            }
            ".pragma" => {
                while !matches!(self.next(), None | Some(Token::Mark(b';'))) {}
                Ok(())
            }
            ".branchtargets" => {
                self.at += 1;
                let mut list = Vec::new();
                loop {
                    let name = self.word()?;
                    match scopes.find(name) {
                        Some(Name::Label(number)) => list.push(number),
                        _ => return self.error(format!("{name} is no label")),
                    }
                    if !self.takes(b',') {
                        break;
                    }
                }
                if let Some(label) = label {
                    body.targets.push((label, list));
                }
                self.expect(b';')
            }
            ".calltargets" => {
                while !matches!(self.next(), None | Some(Token::Mark(b';'))) {}
                Ok(())
            }
            ".callprototype" => {
                self.at += 1;
                let results = self.parameters()?;
                self.word()?;
                let parameters = self.parameters()?;
                while !matches!(self.next(), None | Some(Token::Mark(b';'))) {}
                if let Some(label) = label {
                    body.prototypes.push((label, results, parameters));
                }
                Ok(())
            }
            _ => {
                let first = body.variables.len();
                self.variables(Linkage::Internal, &mut body.variables)?;
                for index in first..body.variables.len() {
                    let name = body.variables[index].name;
                    scopes.declare(name, Name::Variable(index as u32));
                    // A parameter can be declared as many: ".param .b32 a<4>".
                }
                Ok(())
            }
        }
    }

    fn registers(&mut self, body: &mut Body<'a>, scopes: &mut Scopes<'a>) -> Result<()> {
        self.at += 1;
        let mut lanes = 1;
        let of = loop {
            let word = self.word()?;
            match word {
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                _ => match word.strip_prefix('.').and_then(Type::named) {
                    Some(of) => break of,
                    None => return self.error(format!("{word} is no type of a register")),
                },
            }
        };
        loop {
            let name = self.word()?;
            let first = body.registers.len() as u32;
            if self.takes(b'<') {
                let count = self.count()?;
                self.expect(b'>')?;
                if count > 1 << 20 {
                    return self.error(format!("{count} registers are too many"));
                }
                body.registers.extend((0..count * lanes).map(|_| of));
                scopes.declare(name, Name::Registers(first, count, lanes));
            } else {
                body.registers.extend((0..lanes).map(|_| of));
                let meaning =
                    if lanes == 1 { Name::Register(first) } else { Name::Vector(first, lanes) };
                scopes.declare(name, meaning);
            }
            if !self.takes(b',') {
                return self.expect(b';');
            }
        }
    }

    fn instruction(&mut self, scopes: &Scopes<'a>) -> Result<Instruction<'a>> {
        let mut guard = None;
        if self.takes(b'@') {
            let is_negated = self.takes(b'!');
            let name = self.word()?;
            match scopes.find(name) {
                Some(Name::Register(register)) => guard = Some((register, is_negated)),
                _ => return self.error(format!("{name} is no predicate")),
            }
        }
        let line = self.line();
        let name = self.word()?;
        let mut operands = Vec::new();
        while !self.takes(b';') {
            operands.push(self.operand(scopes)?);
            if !self.takes(b',') {
                self.expect(b';')?;
                break;
            }
        }
        Ok(Instruction { line, guard, name, operands })
    }

    fn operand(&mut self, scopes: &Scopes<'a>) -> Result<Operand<'a>> {
        let first = self.simple_operand(scopes)?;
        if is_constant(&first) {
            return self.expression(first, 0, scopes);
        }
        if self.takes(b'|') {
            let second = self.simple_operand(scopes)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple_operand(&mut self, scopes: &Scopes<'a>) -> Result<Operand<'a>> {
        self.nested(|this| this.operand_without_operator(scopes))
    }

    fn operand_without_operator(&mut self, scopes: &Scopes<'a>) -> Result<Operand<'a>> {
        match self.peek() {
            Some(Token::Mark(sign @ (b'!' | b'-' | b'+' | b'~'))) => self.signed(sign, scopes),
            Some(Token::Mark(b'[')) => {
                self.at += 1;
                let address = self.address(scopes)?;
                self.expect(b']')?;
                Ok(address)
            }
            Some(Token::Mark(b'('))
                if let Some(Token::Word(to @ (".s64" | ".u64"))) = self.peek_at(1) =>
            {
                self.cast(to, scopes)
            }
            Some(Token::Mark(open @ (b'{' | b'('))) => self.list(open, scopes),
            Some(Token::Number(text)) => {
                self.at += 1;
                match number(text) {
                    Some(value) => Ok(value),
                    None => self.error(format!("{text} is no number")),
                }
            }
            Some(Token::Word(name)) => {
                self.at += 1;
                self.named(name, scopes)
            }
            _ => {
                let found = self.describe();
                self.error(format!("an operand is expected before {found}"))
            }
        }
    }

    // The next three are not part of the function before, which calls itself: its frame is small.

    /// An operand behind a sign.
    #[inline(never)]
    fn signed(&mut self, sign: u8, scopes: &Scopes<'a>) -> Result<Operand<'a>> {
        self.at += 1;
        let operand = self.simple_operand(scopes)?;
        match (sign, operand) {
            (b'+', operand) => Ok(operand),
            (b'!', Operand::Integer(value)) => Ok(Operand::Integer(i128::from(value == 0))),
            (b'!', operand) => Ok(Operand::Not(Box::new(operand))),
            (b'~', Operand::Integer(value)) => Ok(Operand::Integer(!value)),
            (b'~', _) => self.error("only an integer can be inverted"),
            (_, Operand::Integer(value)) => Ok(Operand::Integer(-value)),
            (_, Operand::Single(bits)) => Ok(Operand::Single(bits ^ 1 << 31)),
            (_, Operand::Double(bits)) => Ok(Operand::Double(bits ^ 1 << 63)),
            (_, part @ (Operand::Register(_) | Operand::Part(..))) => {
                Ok(Operand::Negated(Box::new(part)))
            }
            _ => self.error("only a number can have a sign"),
        }
    }

    /// An integer behind `(.s64)` or `(.u64)`.
    #[inline(never)]
    fn cast(&mut self, to: &str, scopes: &Scopes<'a>) -> Result<Operand<'a>> {
        self.at += 2;
        self.expect(b')')?;
        match self.simple_operand(scopes)? {
            Operand::Integer(value) if to == ".s64" => Ok(Operand::Integer((value as i64).into())),
            Operand::Integer(value) => Ok(Operand::Integer((value as u64).into())),
            _ => self.error("only an integer can be cast"),
        }
    }

    /// A list in braces or parentheses.
    #[inline(never)]
    fn list(&mut self, open: u8, scopes: &Scopes<'a>) -> Result<Operand<'a>> {
        self.at += 1;
        let close = if open == b'{' { b'}' } else { b')' };
        let mut list = Vec::new();
        while !self.takes(close) {
            list.push(self.operand(scopes)?);
            if !self.takes(b',') {
                self.expect(close)?;
                break;
            }
        }
        // An expression of one number in parentheses.
        match list.as_slice() {
            [one] if open == b'(' && is_constant(one) => Ok(one.clone()),
            _ => Ok(Operand::Vector(list)),
        }
    }

    #[inline(never)]
    fn named(&mut self, name: &'a str, scopes: &Scopes<'a>) -> Result<Operand<'a>> {
        match scopes.find(name) {
            Some(Name::Register(register)) => return Ok(Operand::Register(register)),
            Some(Name::Label(label)) => return Ok(Operand::Label(label)),
            Some(Name::Variable(variable)) => {
                return Ok(Operand::Local(variable, self.offset()?));
            }
            Some(Name::Vector(first, lanes)) => {
                let elements = (first..first + lanes).map(Operand::Register);
                return Ok(Operand::Vector(elements.collect()));
            }
            Some(Name::Registers(..)) | None => {}
        }
        if let Some((base, part)) = name.split_once('.') {
            let element = ["xr", "yg", "zb", "wa"].iter().position(|it| it.contains(part));
            match (scopes.find(base), element) {
                (Some(Name::Register(register)), _) => {
                    return Ok(Operand::Part(Box::new(Operand::Register(register)), part));
                }
                (Some(Name::Vector(first, lanes)), Some(element)) if element < lanes as usize => {
                    return Ok(Operand::Register(first + element as u32));
                }
                _ => {}
            }
        }
        match name {
            "_" => Ok(Operand::Sink),
            "WARP_SZ" => Ok(Operand::Integer(32)),
            _ if name.starts_with('%') => Ok(Operand::Special(name)),
            _ => Ok(Operand::Symbol(name, self.offset()?)),
        }
    }

    fn address(&mut self, scopes: &Scopes<'a>) -> Result<Operand<'a>> {
        let base = self.simple_operand(scopes)?;
        let (base, inner) = match base {
            Operand::Local(variable, offset) => (Operand::Local(variable, 0), offset),
            Operand::Symbol(name, offset) => (Operand::Symbol(name, 0), offset),
            other => (other, 0),
        };
        let offset = inner.wrapping_add(self.offset()?);
        let address = Operand::Address(Box::new(base), offset);
        if self.peek() != Some(Token::Mark(b',')) {
            return Ok(address);
        }
        let mut parts = vec![address];
        while self.takes(b',') {
            parts.push(self.operand(scopes)?);
        }
        Ok(Operand::Vector(parts))
    }

    /// The operator of a constant expression that follows: its marks, and how strongly it binds.
    fn operator(&self) -> Option<(&'static str, u8)> {
        let first = match self.peek()? {
            Token::Mark(first) => first,
            Token::Word("%") => b'%',
            _ => return None,
        };
        let second = match self.peek_at(1) {
            Some(Token::Mark(second)) => second,
            _ => 0,
        };
        let found = OPERATORS.iter().find(|(marks, _)| match marks.as_bytes() {
            [one] => *one == first,
            marks => marks == [first, second],
        });
        found.copied()
    }

    /// The rest of a constant expression after its first operand, with operators that bind at
    /// least as strongly as `least`.
    fn expression(
        &mut self,
        first: Operand<'a>,
        least: u8,
        scopes: &Scopes<'a>,
    ) -> Result<Operand<'a>> {
        let mut left = first;
        while let Some((operator, strength)) = self.operator()
            && strength >= least
        {
            self.at += operator.len();
            let right = self.simple_operand(scopes)?;
            if operator == "?" {
                let yes = self.nested(|this| this.expression(right, 0, scopes))?;
                self.expect(b':')?;
                let right = self.simple_operand(scopes)?;
                let no = self.nested(|this| this.expression(right, 0, scopes))?;
                left = if left == Operand::Integer(0) { no } else { yes };
                continue;
            }
            let right = self.nested(|this| this.expression(right, strength + 1, scopes))?;
            left = match combine(operator, &left, &right) {
                Some(value) => value,
                None => return self.error(format!("{operator} does not fit its operands")),
            };
        }
        Ok(left)
    }
}

/// How strongly a multiplication binds.
const MULTIPLICATION: u8 = 10;

/// The operators of constant expressions, the longer ones first, and how strongly they bind.
const OPERATORS: [(&str, u8); 19] = [
    ("<<", 8),
    (">>", 8),
    ("<=", 7),
    (">=", 7),
    ("==", 6),
    ("!=", 6),
    ("&&", 2),
    ("||", 1),
    ("*", MULTIPLICATION),
    ("/", MULTIPLICATION),
    ("%", MULTIPLICATION),
    ("+", 9),
    ("-", 9),
    ("<", 7),
    (">", 7),
    ("&", 5),
    ("^", 4),
    ("|", 3),
    ("?", 0),
];

fn is_constant(operand: &Operand<'_>) -> bool {
    matches!(operand, Operand::Integer(_) | Operand::Single(_) | Operand::Double(_))
}

/// The value of an operation on constants, which have 64 bits.
fn combine(operator: &str, left: &Operand<'_>, right: &Operand<'_>) -> Option<Operand<'static>> {
    let (Operand::Integer(a), Operand::Integer(b)) = (left, right) else {
        return combine_floats(operator, float_of(left)?, float_of(right)?);
    };
    let (a, b) = (*a, *b);
    let shift = (b & 63) as u32;
    let value = match operator {
        "*" => a.wrapping_mul(b),
        "/" => a.checked_div(b)?,
        "%" => a.checked_rem(b)?,
        "+" => a + b,
        "-" => a - b,
        "<<" => a << shift,
        ">>" => a >> shift,
        "<" => i128::from(a < b),
        "<=" => i128::from(a <= b),
        ">" => i128::from(a > b),
        ">=" => i128::from(a >= b),
        "==" => i128::from(a == b),
        "!=" => i128::from(a != b),
        "&" => a & b,
        "^" => a ^ b,
        "|" => a | b,
        "&&" => i128::from(a != 0 && b != 0),
        "||" => i128::from(a != 0 || b != 0),
        _ => return None,
    };
    // What neither a signed nor an unsigned word holds loses its upper bits.
    let fits = (i64::MIN.into()..=u64::MAX.into()).contains(&value);
    Some(Operand::Integer(if fits { value } else { (value as u64).into() }))
}

fn combine_floats(operator: &str, a: f64, b: f64) -> Option<Operand<'static>> {
    let truth = |is_true: bool| Some(Operand::Integer(i128::from(is_true)));
    let value = match operator {
        "*" => a * b,
        "/" => a / b,
        "+" => a + b,
        "-" => a - b,
        "<" => return truth(a < b),
        "<=" => return truth(a <= b),
        ">" => return truth(a > b),
        ">=" => return truth(a >= b),
        "==" => return truth(a == b),
        "!=" => return truth(a != b),
        _ => return None,
    };
    Some(Operand::Double(value.to_bits()))
}

fn float_of(operand: &Operand<'_>) -> Option<f64> {
    match operand {
        Operand::Integer(value) => Some(*value as f64),
        Operand::Single(bits) => Some(f32::from_bits(*bits).into()),
        Operand::Double(bits) => Some(f64::from_bits(*bits)),
        _ => None,
    }
}

/// The value of a number as PTX writes it, without a sign.
fn number(text: &str) -> Option<Operand<'static>> {
    let bytes = text.as_bytes();
    let digits = text.trim_end_matches(['u', 'U']);
    let radix = |skip: usize, radix: u32| {
        u64::from_str_radix(digits.get(skip..)?, radix).ok().map(|it| Operand::Integer(it.into()))
    };
    match (bytes.first()?, bytes.get(1)) {
        (b'0', Some(b'x' | b'X')) => radix(2, 16),
        (b'0', Some(b'b' | b'B')) => radix(2, 2),
        (b'0', Some(b'f' | b'F')) => u32::from_str_radix(&text[2..], 16).ok().map(Operand::Single),
        (b'0', Some(b'd' | b'D')) => u64::from_str_radix(&text[2..], 16).ok().map(Operand::Double),
        _ if text.contains(['.', 'e', 'E']) => {
            text.parse::<f64>().ok().map(|value| Operand::Double(value.to_bits()))
        }
        (b'0', Some(b'0'..=b'7')) => radix(1, 8),
        _ => radix(0, 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_read() {
        let text = ".version 8.3\n.target sm_90a, debug\n.address_size 64\n.file 1 \"a.cu\"\n\
            .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n\
            .global .align 8 .b8 text[3] = {1, 2, 0};\n.global .u64 at = generic(text)+4;\n\
            .extern .shared .align 16 .b8 room[];\n\
            .visible .entry f(.param .u64 .ptr .global .align 4 p, .param .align 4 .b8 q[12])\n\
            .maxntid 256, 1, 1\n{ .reg .pred %p<3>; .reg .b32 %r<4>, one;\n.loc 1 2 3\n\
            $L1: @!%p1 bra.uni $L2;\n{ .reg .b32 one; mov.b32 one, -5; bra $L1; }\n$L2:\n\
            ld.global.v2.u32 {%r1, _}, [q+-4]; setp.lt.u32 %p1|%p2, %r1, 0f3F800000; ret; }";
        let module = module(text).unwrap();
        assert_eq!((module.version, module.target), ((8, 3), 90));
        assert_eq!(module.variables.len(), 3);
        assert_eq!(module.variables[0].bytes(), 3);
        assert_eq!(module.variables[1].values, [Operand::GenericSymbol("text", 4)]);
        assert_eq!((module.variables[2].bytes(), module.variables[2].align), (0, 16));
        let kernel = &module.functions[1];
        assert!(kernel.is_kernel && module.functions[0].body.is_none());
        assert_eq!(kernel.directives, [(".maxntid", vec![256, 1, 1])]);
        assert_eq!(kernel.parameters[1].bytes(), 12);
        let body = kernel.body.as_ref().unwrap();
        assert_eq!(body.registers.len(), 3 + 5 + 1);
        let instructions: Vec<_> = body
            .statements
            .iter()
            .filter_map(|statement| match statement {
                Statement::Instruction(it) => Some(it),
                _ => None,
            })
            .collect();
        assert_eq!(instructions[0].guard, Some((1, true)));
        // The register of the inner scope.
        assert_eq!(instructions[1].operands[0], Operand::Register(8));
        assert_eq!(instructions[1].operands[1], Operand::Integer(-5));
        let address = Operand::Address(Box::new(Operand::Symbol("q", 0)), -4);
        assert_eq!(instructions[3].operands[1], address);
        assert_eq!(instructions[4].operands[2], Operand::Single(0x3f80_0000));
    }

    #[test]
    fn constant_expressions_are_those_of_c() {
        for (text, value) in [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("10 - 3 - 2", 5),
            ("1 << 4 | 3", 19),
            ("~5 & 0xff", 0xfa),
            ("-7 / 2", -3),
            ("-7 % 2", -1),
            ("7 > 3 ? 10 : 20", 10),
            ("0 ? 1 : 0 ? 2 : 3", 3),
            ("!3 || 2 == 2 && 1 != 1", 0),
            ("6 ^ 3 & 2", 4),
            ("(.u64) -1 >> 63", 1),
            ("(.s64) 0xffffffffffffffff >> 63", -1),
            ("1.5 * 2 == 3.0", 1),
            ("0x7fffffffffffffff + 1", 1 << 63),
        ] {
            let (text, scopes) = (format!("{text};"), Scopes::default());
            let mut parser = Parser::new(split(&text).unwrap());
            assert_eq!(parser.operand(&scopes).unwrap(), Operand::Integer(value), "{text}");
            assert!(parser.takes(b';'), "{text}");
        }
        let deep = "(".repeat(100_000);
        for text in ["1 / 0;", "1.5 & 2;", "1 ? 2;", &deep] {
            let mut parser = Parser::new(split(text).unwrap());
            assert!(parser.operand(&Scopes::default()).is_err(), "{text}");
        }
    }

    #[test]
    fn registers_of_vectors_and_parts_are_resolved() {
        let text = ".version 8.3\n.target sm_90\n.func (.reg.b32 r) f(.reg .b32 x) {\n\
            .reg.b32 a; .reg .v2 .b32 v, w<2>;\n\
            mov.b32 v.y, x; ld.v2.b32 w1, [4+4]; vadd.u32.u32.u32 r.h1, a.b3, -a, x;\n\
            tex.2d.v2.f32.f32 v, [t, {a, x}]; }";
        let module = module(text).unwrap();
        let function = &module.functions[0];
        assert_eq!(function.results[0].register, Some(0));
        assert_eq!(function.parameters[0].register, Some(1));
        let body = function.body.as_ref().unwrap();
        assert_eq!(body.registers.len(), 3 + 2 + 4);
        let operands: Vec<_> = body
            .statements
            .iter()
            .map(|statement| match statement {
                Statement::Instruction(it) => it.operands.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        use Operand::*;
        assert_eq!(operands[0], [Register(4), Register(1)]);
        assert_eq!(operands[1][0], Vector(vec![Register(7), Register(8)]));
        assert_eq!(operands[1][1], Address(Box::new(Integer(4)), 4));
        assert_eq!(operands[2][0], Part(Box::new(Register(0)), "h1"));
        assert_eq!(operands[2][1], Part(Box::new(Register(2)), "b3"));
        assert_eq!(operands[2][2], Negated(Box::new(Register(2))));
        assert!(matches!(&operands[3][1], Vector(parts) if parts.len() == 2));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let head = ".version 8.3\n.target sm_52\n";
        for (text, kind, line) in [
            ("", LoadErrorKind::NotPtx, 0),
            (".version 99.0\n.target sm_52", LoadErrorKind::Version, 1),
            (".version 8.3\n.target gpu", LoadErrorKind::Invalid, 2),
            (&format!("{head}.entry f() {{ add }}"), LoadErrorKind::Invalid, 3),
            (&format!("{head}.entry f() {{"), LoadErrorKind::Invalid, 3),
            (&format!("{head}.global .texref t;"), LoadErrorKind::Unsupported, 3),
        ] {
            let error = module(text).unwrap_err();
            assert_eq!((error.kind, error.line), (kind, line), "{error}");
        }
    }
}
