package usher_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// packages are those that a page may name things of.
var packages = []string{
	"cluster", "flowtable", "flowtable/flowtest", "flowtable/redisflow", "relay", "transceiver",
	"transceiver/bridge", "transceiver/bridge/bridgetest", "transceiver/geo", "ufrag",
}

// exported returns every exported name of these packages as pages write them:
// "relay.Server", "Server.Close" and "Config.Trunk".
func exported(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	add := func(pkg, of string, id *ast.Ident) {
		if of == "" {
			names[pkg+"."+id.Name] = true
			return
		}
		names[of+"."+id.Name] = true
	}
	for _, dir := range packages {
		pkg := path.Base(dir)
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if path.Ext(e.Name()) != ".go" || strings.HasSuffix(e.Name(), "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					add(pkg, receiver(d), d.Name)
				case *ast.GenDecl:
					for _, s := range d.Specs {
						switch s := s.(type) {
						case *ast.ValueSpec:
							for _, id := range s.Names {
								add(pkg, "", id)
							}
						case *ast.TypeSpec:
							add(pkg, "", s.Name)
							for _, id := range members(s.Type) {
								add(pkg, s.Name.Name, id)
							}
						}
					}
				}
			}
		}
	}
	return names
}

// receiver returns the name of a method's type; "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// members returns the names of a struct's fields and of an interface's methods.
func members(of ast.Expr) (names []*ast.Ident) {
	var list *ast.FieldList
	switch of := of.(type) {
	case *ast.StructType:
		list = of.Fields
	case *ast.InterfaceType:
		list = of.Methods
	default:
		return nil
	}
	for _, f := range list.List {
		names = append(names, f.Names...)
	}
	return names
}

// TestNamesInDocsExist looks up every name of this module's API that a page has in
// a code span. A page may be ahead of no release, but not of the code.
func TestNamesInDocsExist(t *testing.T) {
	names := exported(t)
	owners := map[string]bool{} // what can stand before a dot
	for name := range names {
		owner, _, _ := strings.Cut(name, ".")
		owners[owner] = true
	}
	qualified := regexp.MustCompile(`^(?:[a-z]+\.)?[A-Z]\w*(?:\.[A-Z]\w*)?$`)
	checked := 0
	for page, text := range pages(t) {
		if page == "CHANGELOG.md" { // tells of names that are gone, too
			continue
		}
		for _, span := range codeSpan.FindAllString(codeBlock.ReplaceAllString(text, ""), -1) {
			name := strings.TrimSuffix(strings.Trim(span, "`"), "()")
			if !qualified.MatchString(name) || !strings.Contains(name, ".") {
				continue
			}
			parts := strings.Split(name, ".")
			if !owners[parts[0]] {
				continue // of another package
			}
			checked++
			for i := range parts[1:] {
				if pair := strings.Join(parts[i:i+2], "."); !names[pair] {
					t.Errorf("%s: there is no %s (of `%s`)", page, pair, name)
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d names in all pages", checked)
	}
}
